//! Uploads a project, tests it on the host, and downloads the results, with progress.
//!
//! ```sh
//! cargo run -p remex --example test_there                                # a small project that it makes up
//! REMEX_URL=ws://127.0.0.1:4000 cargo run -p remex --example test_there -- ~/project make test
//! ```

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use remex::{Local, environments::configured};
use remex_client::{
    Command, Options,
    environment::Environments,
    fs::{Progress, SkipUnchanged},
    process::OnDrop,
};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let scratch = tempfile::tempdir()?;
    let mut words = env::args().skip(1);
    let project = match words.next() {
        Some(directory) => PathBuf::from(directory),
        None => sample(scratch.path().join("project"))?,
    };
    let test = match words.next() {
        Some(program) => Command::new(program).args(words),
        None => Command::shell("mkdir -p results && wc -c < data > results/count && echo tested"),
    };

    let definitions = configured(|name| env::var_os(name))?.definitions;
    let environments = Environments::new(definitions, Some(Local::here()?.target()), &Options::default());
    let environment =
        environments.default_environment().context("the configuration has no default environment")?;
    let client = environment.client().await?;
    let host = client.info().await?;
    let temporary = host.temp_dir.context("the server does not tell a directory for temporary files")?;
    let there = format!("{}/remex-test-{}", temporary.native()?.display(), std::process::id());

    // What git ignores stays here, and what is there already is not sent again.
    let upload = client.fs().upload_tree(&project, &there);
    let upload = upload.use_gitignore_files().skip_unchanged(SkipUnchanged::BySizeAndTime);
    let report = upload.progress(|so_far| show("up", so_far)).await?;
    ensure!(report.is_complete(), "not everything was uploaded: {:?}", report.failures);

    let process = test.cwd(&there).on_drop(OnDrop::Terminate).start(&client).await?;
    let mut lines = process.lines();
    while let Some(line) = lines.next().await? {
        println!("| {}", line.text);
    }
    let exit = process.wait().await?;

    let results = project.join("results");
    let download = client.fs().download_tree(format!("{there}/results"), &results);
    let report = download.progress(|so_far| show("down", so_far)).await?;
    client.fs().remove(&there).recursive().await?;
    println!("exit code {}, {} files of results in {}", exit.code, report.files, shown(&results));
    Ok(())
}

fn show(way: &str, so_far: &Progress) {
    match so_far.total_bytes {
        Some(total) => println!("{way}: {} of {total} bytes", so_far.bytes),
        None => println!("{way}: {} bytes", so_far.bytes),
    }
}

fn shown(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Makes a project with a file that git ignores.
fn sample(directory: PathBuf) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(directory.join("target"))?;
    fs::write(directory.join(".gitignore"), "target/\n")?;
    fs::write(directory.join("data"), "0123456789")?;
    fs::write(directory.join("target/large"), vec![0; 1 << 20])?;
    Ok(directory)
}
