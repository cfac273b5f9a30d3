//! Starts the keeper outside of the server's systemd unit, so that it survives the unit.
//!
//! Start at [`launcher`].

use std::{ffi::OsString, path::Path};

use crate::remote::unit::Unit;

/// Exists where systemd is the init system.
const BOOTED: &str = "/run/systemd/system";

/// Returns the program that runs a command in a scope of its own, if the server is in a service of systemd.
///
/// systemd ends everything in a service that stops, unless `KillMode=` says otherwise.
pub(super) fn launcher() -> Vec<OsString> {
    let membership = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    match Unit::of(&membership).filter(|unit| unit.is_service() && Path::new(BOOTED).exists()) {
        Some(unit) => arguments(&unit).into_iter().map(OsString::from).collect(),
        None => Vec::new(),
    }
}

fn arguments(unit: &Unit) -> Vec<String> {
    let mut arguments = ["systemd-run", unit.manager.flag()].map(str::to_owned).to_vec();
    // The scope is ended when memory runs out, unless it is delegated.
    let fixed = [
        "--scope",
        "--collect",
        "--quiet",
        "--no-ask-password",
        "--property=Delegate=yes",
        "--description=remex keeper",
    ];
    arguments.extend(fixed.map(str::to_owned));
    // Limits of the slice hold for the keeper, too.
    arguments.extend(unit.slice.as_ref().map(|slice| format!("--slice={slice}")));
    arguments.push("--".to_owned());
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::unit::Manager;

    #[test]
    fn a_scope_is_created_by_the_manager_of_the_unit_and_in_its_slice() {
        let (name, slice) = ("remex.service".to_owned(), Some("app.slice".to_owned()));
        let of_user = arguments(&Unit { name: name.clone(), slice, manager: Manager::User });
        assert_eq!(of_user[..3], ["systemd-run", "--user", "--scope"]);
        assert!(of_user.contains(&"--slice=app.slice".to_owned()), "{of_user:?}");
        assert_eq!(of_user.last().map(String::as_str), Some("--"));
        let of_system = arguments(&Unit { name, slice: None, manager: Manager::System });
        assert_eq!(of_system[1], "--system");
        assert!(!of_system.iter().any(|argument| argument.starts_with("--slice")), "{of_system:?}");
    }
}
