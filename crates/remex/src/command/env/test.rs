//! `remex env test`.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::Outcome;
use crate::{
    failure::Failure,
    finding::{self, Finding},
    place::Place,
    print::{self, Colour, Format, Tone},
    probe::{self, probe},
    text::{duration, plain},
};

/// Flags of `remex env test`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Flags {
    /// Which: names of environments, or addresses such as `ws://host:7070`
    #[arg(value_name = "ENV|URL", required_unless_present = "all")]
    names: Vec<String>,

    /// All environments there are
    #[arg(long, conflicts_with = "names")]
    all: bool,

    /// How long each may take, such as `10s`
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    timeout: Duration,

    #[command(flatten)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  Try one:
    remex env test build
  Try all of them, this machine too:
    remex env test --all
  For programs:
    remex env test build gpu --json

The exit code is 0 if everything works, 4 if one cannot be reached, else 1.";

#[derive(Serialize)]
struct Listing {
    environments: Vec<Tested>,
}

#[derive(Serialize)]
struct Tested {
    id: String,
    #[serde(rename = "where")]
    place: String,
    reached: bool,
    ok: bool,
    checks: Vec<Finding>,
}

pub(super) async fn run(flags: &Flags) -> Outcome {
    let names = if flags.all { all()? } else { flags.names.clone() };
    let places = names.iter().map(|name| Place::named(name)).collect::<Result<Vec<_>, _>>()?;
    let limit = flags.timeout;
    let probes: Vec<_> = places
        .into_iter()
        .map(|place| tokio::spawn(async move { (probe(&place, limit).await, place) }))
        .collect();
    let mut tested = Vec::new();
    for probe in probes {
        let (report, place) = probe.await.map_err(|error| {
            Failure::new(format!("a test ended early: {error}"), "report this as a defect")
        })?;
        let environment = end(report, &place).await;
        if !flags.format.json {
            print::out(text(&environment))?;
        }
        tested.push(environment);
    }
    let code = match () {
        () if tested.iter().all(|environment| environment.ok) => 0,
        () if tested.iter().any(|environment| !environment.reached) => 4,
        () => 1,
    };
    if flags.format.json {
        print::json(&Listing { environments: tested })?;
    }
    Ok(code)
}

fn all() -> Result<Vec<String>, Failure> {
    Ok(super::entries()?.into_iter().map(|entry| entry.id).collect())
}

async fn end(report: probe::Report, place: &Place) -> Tested {
    let reached = report.client.is_some();
    if let Some(client) = report.client {
        // Whether it ends in order is nobody's question here.
        let _ = client.end().await;
    }
    Tested {
        id: place.name.clone(),
        place: place.target.to_string(),
        reached,
        ok: !finding::any_failed(&report.findings),
        checks: report.findings,
    }
}

fn text(tested: &Tested) -> String {
    let name = Colour::of_stdout().paint(Tone::Bold, &plain(&tested.id));
    let place = plain(&tested.place);
    let heading = if tested.id == tested.place { name } else { format!("{name}: {place}") };
    format!("{heading}\n{}", finding::text(&tested.checks, "failed"))
}
