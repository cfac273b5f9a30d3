//! The confinement that this host can enforce for processes, probed when a client first asks.
//!
//! Building a jail to try takes a few milliseconds, so the handshake never waits for it. Start at [`SupportProbe`].

use std::sync::OnceLock;

use remex_process::{JailMechanism, JailSupport};
use remex_proto::environment::{Confinement, ProcessConfinement};

/// The answer, once it is known to stay the same.
#[derive(Debug, Default)]
pub(crate) struct SupportProbe {
    /// Only if processes can be confined to every profile: what is missing may be enabled at any time.
    known: OnceLock<Confinement>,
}

impl SupportProbe {
    /// Returns the answer if it is known.
    pub(crate) fn known(&self) -> Option<Confinement> {
        self.known.get().cloned()
    }

    /// Finds out what the host can enforce. Blocks.
    pub(crate) fn probe(&self) -> Confinement {
        let found = describe(&JailSupport::probe());
        if found.processes == ProcessConfinement::Namespaces {
            // Another request may have been faster, with the same answer.
            _ = self.known.set(found.clone());
        }
        found
    }
}

fn describe(support: &JailSupport) -> Confinement {
    let obstacle = support.obstacle.as_ref();
    let mut confinement = Confinement::new(match support.mechanism {
        Some(JailMechanism::Namespaces) => ProcessConfinement::Namespaces,
        Some(JailMechanism::Landlock) => ProcessConfinement::Landlock,
        None => ProcessConfinement::None,
    });
    confinement.landlock_abi = support.landlock;
    confinement.reason = obstacle.map(ToString::to_string);
    confinement.hint = obstacle.map(remex_process::JailError::hint);
    confinement
}

#[cfg(test)]
mod tests {
    use remex_process::{JailError, Step};

    use super::*;

    #[test]
    fn missing_confinement_is_explained() {
        let works =
            JailSupport { mechanism: Some(JailMechanism::Namespaces), landlock: Some(7), obstacle: None };
        let mut nothing_missing = Confinement::new(ProcessConfinement::Namespaces);
        nothing_missing.landlock_abi = Some(7);
        assert_eq!(describe(&works), nothing_missing);
        let obstacle = JailError::Step { step: Step::Namespaces, path: None, errno: 1 };
        let hint = obstacle.hint();
        let fails = JailSupport {
            mechanism: Some(JailMechanism::Landlock),
            landlock: Some(6),
            obstacle: Some(obstacle),
        };
        let mut explained = Confinement::new(ProcessConfinement::Landlock);
        explained.landlock_abi = Some(6);
        explained.reason = Some("cannot create namespaces: Operation not permitted (os error 1)".to_owned());
        explained.hint = Some(hint);
        assert_eq!(describe(&fails), explained);
    }
}
