//! The process that a request names.

use remex_proto::process as wire;

/// The process that a request names.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessTarget<'a> {
    /// The session of the process; that of the connection if absent.
    pub(super) session: Option<&'a str>,
    pub(super) process: &'a str,
    /// The incarnation, if the request names one.
    pub(super) incarnation: Option<u64>,
}

/// A request about one process.
pub(super) trait Targeted {
    fn target(&self) -> ProcessTarget<'_>;
}

impl<'a> ProcessTarget<'a> {
    pub(super) fn of(request: &'a impl Targeted) -> Self {
        request.target()
    }
}

macro_rules! targeted {
    ($($request:ident)*) => {
        $(
            impl Targeted for wire::$request {
                fn target(&self) -> ProcessTarget<'_> {
                    ProcessTarget {
                        session: self.session_id.as_deref(),
                        process: &self.process_id,
                        incarnation: self.incarnation,
                    }
                }
            }
        )*
    };
}

targeted! { Read Write CloseStdin Resize Signal Terminate StartAgain Wait Snapshot Seek }
