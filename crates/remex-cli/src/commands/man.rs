//! `remex man`: writes the man pages.

use std::fs;

use super::Outcome;
use crate::{
    args::man::{Flags, pages},
    render::{failure::Failure, print},
};

pub(crate) fn run(flags: &Flags) -> Outcome {
    let pages = pages().map_err(|error| Failure::io("generate a man page", &error))?;
    let Some(directory) = &flags.dir else {
        if let Some(first) = pages.first() {
            print::out(&first.text)?;
        }
        return Ok(0);
    };
    fs::create_dir_all(directory)
        .map_err(|error| Failure::io(&format!("create `{}`", directory.display()), &error))?;
    for page in pages {
        let path = directory.join(format!("{}.1", page.name));
        fs::write(&path, page.text)
            .map_err(|error| Failure::io(&format!("write `{}`", path.display()), &error))?;
    }
    Ok(0)
}
