//! The systemd unit that a process belongs to, as `/proc/PID/cgroup` names it.
//!
//! Start at [`Unit::of`].

/// The unit of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Such as `remex.service`.
    pub(crate) name: String,
    /// The slice that it is in, unless that is the root.
    pub(crate) slice: Option<String>,
    pub(crate) manager: Manager,
}

/// Which systemd manages a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manager {
    System,
    /// That of a user.
    User,
}

impl Unit {
    /// Returns the innermost unit in the content of `/proc/PID/cgroup`; `None` if there is none, as in most containers.
    pub(crate) fn of(membership: &str) -> Option<Self> {
        let paths = |hierarchy: &str| {
            membership.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                (controllers == hierarchy).then_some(path)
            })
        };
        // systemd has a hierarchy of its own where cgroups have version 1.
        ["name=systemd", ""].into_iter().filter_map(paths).find_map(Self::in_path)
    }

    fn in_path(path: &str) -> Option<Self> {
        let parts: Vec<_> = path.split('/').collect();
        let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
        let index = parts.iter().rposition(is_unit)?;
        let above = &parts[..index];
        let is_user_manager = |part: &&str| part.starts_with("user@") && part.ends_with(".service");
        let slice = above.iter().rfind(|part| part.ends_with(".slice"));
        Some(Unit {
            name: parts[index].to_owned(),
            slice: slice.map(|slice| (*slice).to_owned()),
            manager: if above.iter().any(is_user_manager) { Manager::User } else { Manager::System },
        })
    }

    /// Returns whether systemd ends all processes of the unit when its main process ends.
    pub(crate) fn is_service(&self) -> bool {
        self.name.ends_with(".service")
    }
}

impl Manager {
    /// Returns the flag that selects this manager.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Manager::System => "--system",
            Manager::User => "--user",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_unit_is_found_in_both_versions_of_cgroups() {
        let unit = |name: &str, slice: Option<&str>, manager| {
            Some(Unit { name: name.to_owned(), slice: slice.map(str::to_owned), manager })
        };
        for (membership, expected) in [
            (
                "0::/system.slice/remex.service\n",
                unit("remex.service", Some("system.slice"), Manager::System),
            ),
            (
                "0::/user.slice/user-7.slice/user@7.service/app.slice/remex.service/server\n",
                unit("remex.service", Some("app.slice"), Manager::User),
            ),
            (
                "0::/user.slice/user-7.slice/session-3.scope\n",
                unit("session-3.scope", Some("user-7.slice"), Manager::System),
            ),
            (
                "12:pids:/user.slice\n1:name=systemd:/system.slice/a:b.service\n0::/\n",
                unit("a:b.service", Some("system.slice"), Manager::System),
            ),
            ("1:name=systemd:/\n0::/remex.service\n", unit("remex.service", None, Manager::System)),
            ("0::/\n", None),
            ("9:memory:/docker/27\n0::/docker/27\n", None),
            ("", None),
        ] {
            assert_eq!(Unit::of(membership), expected, "{membership}");
        }
    }
}
