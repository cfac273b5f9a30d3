//! Measures remex and, in the same run, what the machine allows.
//!
//! It only reports: a goal that is not reached is a word in the table, not a failure. See `README.md`.

mod bare;
mod client;
mod measure;
mod message;
mod proc;
mod results;
mod server;
mod spawn;
mod stats;
mod table;
mod way;

use std::{
    collections::{BTreeSet, HashSet},
    env, fs,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    measure::{Figures, Measure, Scale},
    results::{BARE, Results},
    server::Subject,
};

/// Where children find programs: the same for every subject.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Enough for hundreds of processes with three descriptors each.
const DESCRIPTORS: u64 = 65_536;

/// How a child is wired to whoever started it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stdio {
    Pipe,
    Pty,
}

/// Measures a remex server against what the machine allows, and against other servers of the same dialect.
#[derive(Parser)]
#[command(name = "remex-bench", version)]
struct Arguments {
    /// The remex program [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
    /// Another server to measure side by side, as `name=command with {port}`; may be repeated
    #[arg(long, value_name = "NAME=COMMAND")]
    peer: Vec<Subject>,
    /// Measure remex with TLS beside remex without
    #[arg(long)]
    tls: bool,
    /// Measure remex with binary messages beside remex without
    #[arg(long)]
    binary: bool,
    /// Measure remex with a state directory beside remex without, and what only such a server can do
    #[arg(long)]
    durable: bool,
    /// Measure the clients in Python and TypeScript beside the Rust client; needs Python, Node, and a built client
    #[arg(long)]
    languages: bool,
    /// How often everything is measured; the table shows medians [default: 5, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Only these measurements, separated by commas; `client` is all that begin with `client-`; a wrong name lists them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Less of everything, for a first look
    #[arg(long)]
    quick: bool,
    /// Write all figures of all rounds to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Exits with 1 when something could not be measured at all.
fn run(arguments: &Arguments) -> Result<ExitCode> {
    let measures = selected(arguments)?;
    let subjects = subjects(arguments)?;
    let (scale, rounds) = if arguments.quick { (Scale::QUICK, 1) } else { (Scale::FULL, 5) };
    let rounds = arguments.rounds.unwrap_or(rounds);
    raise_descriptor_limit()?;
    let mut results = Results::default();
    let mut failures = BTreeSet::new();
    for measure in &measures {
        for round in 1..=rounds {
            writeln!(io::stderr(), "{} ({round} of {rounds})", measure.name)?;
            measure_round(measure, &subjects, &scale, |subject, outcome| match outcome {
                Ok(figures) => results.add(measure.name, subject, &figures),
                Err(error) => drop(failures.insert(format!("{} of {subject}: {error:#}", measure.name))),
            });
        }
    }
    let names: Vec<_> = subjects.iter().map(|subject| subject.name.as_str()).collect();
    io::stdout().write_all(table::markdown(&measures, &names, &results).as_bytes())?;
    if let Some(path) = &arguments.json {
        fs::write(path, format!("{:#}\n", table::json(&measures, &names, &results)))
            .with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    for failure in &failures {
        writeln!(io::stderr(), "not measured: {failure}")?;
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every server once, then the machine, so that whatever disturbs a round disturbs them all.
fn measure_round(
    measure: &Measure,
    subjects: &[Subject],
    scale: &Scale,
    mut report: impl FnMut(&str, Result<Figures>),
) {
    for subject in subjects {
        report(&subject.name, subject.start().and_then(|server| (measure.server)(&server, scale)));
    }
    if let Some(bare) = measure.bare {
        report(BARE, bare(scale));
    }
}

fn selected(arguments: &Arguments) -> Result<Vec<&'static Measure>> {
    let only = &arguments.only;
    if let Some(unknown) =
        only.iter().find(|name| !measure::ALL.iter().any(|measure| measure.is_meant_by(name)))
    {
        let names: Vec<_> = measure::ALL.iter().map(|measure| measure.name).collect();
        bail!("there is no measurement `{unknown}`; choose from {}", names.join(", "));
    }
    let is_selected =
        |measure: &&Measure| only.is_empty() || only.iter().any(|name| measure.is_meant_by(name));
    let mut measures: Vec<_> = measure::ALL.iter().filter(is_selected).collect();
    if !arguments.durable {
        measures.retain(|measure| !measure.needs_durable());
        ensure!(!measures.is_empty(), "only a durable server can be measured so; add `--durable`");
    }
    if !arguments.languages {
        measures.retain(|measure| !measure.needs_languages());
        ensure!(!measures.is_empty(), "this needs Python and Node; add `--languages`");
    }
    Ok(measures)
}

fn subjects(arguments: &Arguments) -> Result<Vec<Subject>> {
    let program = match &arguments.server {
        Some(program) => program.clone(),
        None => env::current_exe()?.with_file_name("remex"),
    };
    ensure!(
        program.is_file(),
        "there is no server at `{}`; build it with `cargo build --release -p remex-cli`, or name it with `--server`",
        program.display()
    );
    let mut subjects = vec![Subject::remex(program.clone())];
    if arguments.binary {
        subjects.push(Subject::remex_binary(program.clone()));
    }
    if arguments.tls {
        subjects.push(Subject::remex_tls(program.clone()));
    }
    if arguments.durable {
        subjects.push(Subject::remex_durable(program));
    }
    subjects.extend(arguments.peer.iter().cloned());
    let mut names = HashSet::from([BARE]);
    for subject in &subjects {
        ensure!(names.insert(&subject.name), "the name `{}` is taken; give the peer another", subject.name);
    }
    Ok(subjects)
}

/// The servers inherit it, so that none is measured at the edge of a small limit.
fn raise_descriptor_limit() -> io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(DESCRIPTORS, |maximum| maximum.min(DESCRIPTORS));
    if current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })?;
    }
    Ok(())
}
