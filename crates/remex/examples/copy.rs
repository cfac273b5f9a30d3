//! Copies a file or directory to the default environment and back, and compares the results.
//!
//! ```sh
//! cargo run -p remex --example copy                     # a small tree that it makes up
//! REMEX_URL=ws://127.0.0.1:4000 cargo run -p remex --example copy -- ~/project
//! ```

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::{env, fs, path::PathBuf};

use anyhow::{Context as _, ensure};
use remex::{Local, environments::configured};
use remex_client::{
    Client, Options,
    environment::Environments,
    fs::{Progress, WalkKind, WalkOptions},
};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let scratch = tempfile::tempdir()?;
    let from = match env::args_os().nth(1) {
        Some(path) => fs::canonicalize(path)?,
        None => sample(scratch.path().join("sample"))?,
    };
    let back = scratch.path().join("back");

    // A server in this process, so that both sides have the same API.
    let local = Local::here()?.target();
    let here = Client::connect(local.clone()).await?.fs();
    let definitions = configured(|name| env::var_os(name))?.definitions;
    let environments = Environments::new(definitions, Some(local), &Options::default());
    let environment =
        environments.default_environment().context("the configuration has no default environment")?;
    let info = environment.info().await?;
    let temporary = info.temp_dir.context("the server does not tell a directory for temporary files")?;
    let there = environment.fs().await?;
    let to = temporary.native()?.join(format!("remex-copy-{}", std::process::id()));

    let tell = |way: &'static str| move |so_far: &Progress| println!("{way}: {} bytes", so_far.bytes);
    if from.is_dir() {
        let report = there.upload_tree(&from, &to).progress(tell("there")).stop_at_first_failure().await?;
        println!("{} files in {} directories", report.files, report.directories + 1);
        let report = there.download_tree(&to, &back).progress(tell("back")).await?;
        ensure!(report.is_complete(), "not everything came back: {:?}", report.failures);
    } else {
        there.upload(tokio::fs::File::open(&from).await?, &to).progress(tell("there")).await?;
        there.download(&to, &mut tokio::fs::File::create(&back).await?).progress(tell("back")).await?;
    }

    let files = if from.is_dir() {
        let found = here.walk(&from, WalkOptions::default()).await?.entries.into_iter();
        found.filter(|entry| entry.kind == WalkKind::File).map(|entry| entry.path).collect()
    } else {
        vec![from.clone().into()]
    };
    for file in files {
        let name = file.native()?.strip_prefix(&from)?;
        // Joining an empty name would add a trailing slash.
        let at = |root: &PathBuf| if name.as_os_str().is_empty() { root.clone() } else { root.join(name) };
        let original = here.hash(&file).await?;
        ensure!(original == there.hash(at(&to)).await?, "{file} is another one there");
        ensure!(original == here.hash(at(&back)).await?, "{file} is another one back here");
        println!("{} {}", original.hash, at(&from).display());
    }
    there.remove(&to).recursive().await?;
    println!("everything is the same");
    Ok(())
}

/// Creates a small tree with a large file.
fn sample(root: PathBuf) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(root.join("notes"))?;
    fs::write(root.join("notes/greeting"), "hello\n")?;
    fs::write(root.join("large"), vec![7; 3 << 20])?;
    Ok(root)
}
