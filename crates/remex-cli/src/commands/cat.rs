//! `remex cat`: prints files unchanged.

use super::Outcome;
use crate::{
    args::cat::Flags,
    remote::path_arg::{Connections, RemotePath, note_local_paths},
    render::{
        failure::{Failure, Kind},
        print,
    },
};

pub(crate) async fn run(flags: &Flags) -> Outcome {
    note_local_paths(&flags.paths);
    let mut connections = Connections::default();
    let mut failures = Failures::default();
    for arg in &flags.paths {
        let printed = match connections.reach(arg, |text| print::note(text)).await {
            Ok(remote_path) => cat(&remote_path).await,
            Err(failure) => failures.add_unreachable(failure),
        };
        if let Err(failure) = printed {
            failures.add(failure)?;
        }
    }
    connections.close().await;
    Ok(failures.code())
}

async fn cat(remote_path: &RemotePath) -> Result<(), Failure> {
    let failed = |error| remote_path.failed("read", error);
    let mut file = remote_path.at.fs.open(&remote_path.path).await.map_err(failed)?;
    while let Some(chunk) = file.chunk().await.map_err(failed)? {
        print::out(&chunk)?;
    }
    Ok(())
}

/// Reports the failures of single operands, and continues with the others.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    count: usize,
    not_found: usize,
    unreachable: usize,
}

impl Failures {
    /// Reports a failure; returns it if the command cannot continue.
    pub(crate) fn add(&mut self, failure: Failure) -> Result<(), Failure> {
        match failure.kind() {
            Kind::BrokenPipe | Kind::Unreachable | Kind::Usage | Kind::Signalled(_) => return Err(failure),
            Kind::NotFound => self.not_found += 1,
            _ => {}
        }
        self.count += 1;
        failure.print();
        Ok(())
    }

    /// Reports an unreachable host, and continues with the others; returns other failures.
    pub(crate) fn add_unreachable(&mut self, failure: Failure) -> Result<(), Failure> {
        if failure.kind() != Kind::Unreachable {
            return Err(failure);
        }
        self.count += 1;
        self.unreachable += 1;
        failure.print();
        Ok(())
    }

    /// Returns the exit code: 3 if all failures are missing files or processes, 4 if a host was unreachable.
    pub(crate) fn code(&self) -> u8 {
        match self.count {
            0 => 0,
            _ if self.unreachable > 0 => 4,
            count if count == self.not_found => 3,
            _ => 1,
        }
    }
}
