//! `remex cat`: files to standard output, as they are.

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
    for spot in &flags.paths {
        let printed = match connections.reach(spot, |text| print::note(text)).await {
            Ok(site) => cat(&site).await,
            Err(failure) => failures.add_place(failure),
        };
        if let Err(failure) = printed {
            failures.add(failure)?;
        }
    }
    connections.close().await;
    Ok(failures.code())
}

async fn cat(site: &RemotePath) -> Result<(), Failure> {
    let failed = |error| site.failed("read", error);
    let mut file = site.at.fs.open(&site.path).await.map_err(failed)?;
    while let Some(chunk) = file.chunk().await.map_err(failed)? {
        print::out(&chunk)?;
    }
    Ok(())
}

/// What went wrong with some of several things, said at once; the others go on.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    count: usize,
    not_found: usize,
    unreachable: usize,
}

impl Failures {
    /// Says a failure; returns it when it makes no sense to go on.
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

    /// Says that a place cannot be reached, which is no reason to leave out the others; returns other failures.
    pub(crate) fn add_place(&mut self, failure: Failure) -> Result<(), Failure> {
        if failure.kind() != Kind::Unreachable {
            return Err(failure);
        }
        self.count += 1;
        self.unreachable += 1;
        failure.print();
        Ok(())
    }

    /// Returns the exit code: 3 when all that went wrong is that things are not there, 4 when a place was not reached.
    pub(crate) fn code(&self) -> u8 {
        match self.count {
            0 => 0,
            _ if self.unreachable > 0 => 4,
            count if count == self.not_found => 3,
            _ => 1,
        }
    }
}
