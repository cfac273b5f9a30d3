//! Builds the runtime; if its threads cannot be created, that is an error, not a panic. Start at [`build`].

use std::{fmt::Display, panic, process};

use tokio::runtime::{Builder, Runtime};

use crate::render::failure::{Failure, NO_ROOM};

/// Builds a runtime. If its threads cannot be created, prints an error and exits with `exit_code`.
///
/// Must be called while the program has no other threads: a panic there would also end the program.
///
/// # Errors
/// When the process cannot open more descriptors.
pub(crate) fn build(builder: &mut Builder, exit_code: u8) -> Result<Runtime, Failure> {
    // The runtime panics when it cannot spawn a thread. That panic cannot be caught: as it unwinds, it waits for the
    // threads that were spawned before, and these wait for work.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        no_runtime(&text.unwrap_or("it panicked")).print();
        process::exit(exit_code.into());
    }));
    let built = builder.build();
    panic::set_hook(hook);
    built.map_err(|error| no_runtime(&error))
}

fn no_runtime(error: &dyn Display) -> Failure {
    Failure::new("cannot start the runtime", NO_ROOM).because(error.to_string())
}
