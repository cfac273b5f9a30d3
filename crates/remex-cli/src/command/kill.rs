//! `remex kill`: a signal for a process, or the end of everything it started.

use std::time::Duration;

use clap::Args;
use remex_proto::process::{SignalName, TerminateMode};

use super::Outcome;
use crate::{
    failure::Failure,
    find::{Processes, Row},
    followed::is_forgotten,
    place::{On, Otherwise},
    print,
    text::{duration, plain},
};

/// Flags of `remex kill`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// The processes, each by its whole name; on a terminal you are asked about the beginning of one
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    on: On,

    /// Which signal: a name such as `INT` or `SIGINT`, or its number on Linux; `-9` and `-KILL` work, too; TERM unless
    /// given
    #[arg(short, long, value_name = "SIGNAL", value_parser = signal)]
    signal: Option<SignalName>,

    /// End it with everything it started, and wait until that is gone: TERM, and KILL for what is left after the
    /// grace; KILL at once with `--signal KILL`
    #[arg(short, long)]
    tree: bool,

    /// How long processes get between TERM and KILL, such as `500ms` or `5s`
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration, requires = "tree")]
    grace: Duration,
}

const EXAMPLES: &str = "\
Examples:
  Ask a process to reread its configuration:
    remex kill build --signal HUP
  Kill it alone, as other kills do:
    remex kill -9 build
  End it with everything it started, gently:
    remex kill build --tree
  At once:
    remex kill build --tree --signal KILL
";

/// How often it is looked whether something of a tree still lives once its output has ended.
const LOOK: Duration = Duration::from_millis(100);

/// How long the server may take to kill what outlived its grace.
const PATIENCE: Duration = Duration::from_secs(10);

/// The numbers of signals on Linux, where they have one that every machine agrees on.
pub(crate) const NUMBERS: [(u8, SignalName); 29] = [
    (1, SignalName::Hup),
    (2, SignalName::Int),
    (3, SignalName::Quit),
    (4, SignalName::Ill),
    (5, SignalName::Trap),
    (6, SignalName::Abrt),
    (7, SignalName::Bus),
    (8, SignalName::Fpe),
    (9, SignalName::Kill),
    (10, SignalName::Usr1),
    (11, SignalName::Segv),
    (12, SignalName::Usr2),
    (13, SignalName::Pipe),
    (14, SignalName::Alrm),
    (15, SignalName::Term),
    (17, SignalName::Chld),
    (18, SignalName::Cont),
    (19, SignalName::Stop),
    (20, SignalName::Tstp),
    (21, SignalName::Ttin),
    (22, SignalName::Ttou),
    (23, SignalName::Urg),
    (24, SignalName::Xcpu),
    (25, SignalName::Xfsz),
    (26, SignalName::Vtalrm),
    (27, SignalName::Prof),
    (28, SignalName::Winch),
    (29, SignalName::Io),
    (31, SignalName::Sys),
];

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let way = way(flags)?;
    let place = flags.on.place(Otherwise::OwnIfThere).await?;
    let client = place.connect(|_| {}).await?;
    let processes = Processes::list(&client).await?;
    let (mut failed, mut said) = (None::<Failure>, Ok(()));
    for row in processes.find_whole(&flags.names, "kill").await? {
        match end(&processes, row, way).await {
            // Those that follow are to end also when nobody reads which.
            Ok(done) => said = said.and_then(|()| print::out(format!("{done}\n"))),
            Err(failure) => {
                if let Some(earlier) = failed.replace(failure) {
                    earlier.print();
                }
            }
        }
    }
    let _ = client.end().await;
    match failed {
        Some(failure) => Err(failure),
        None => said.map(|()| 0),
    }
}

#[derive(Clone, Copy)]
enum Way {
    Signal(SignalName),
    Tree(TerminateMode),
}

fn way(flags: &Flags) -> Result<Way, Failure> {
    match (flags.tree, flags.signal) {
        (false, signal) => Ok(Way::Signal(signal.unwrap_or(SignalName::Term))),
        (true, None | Some(SignalName::Term)) => {
            let timeout_ms = u64::try_from(flags.grace.as_millis()).unwrap_or(u64::MAX);
            Ok(Way::Tree(TerminateMode::Graceful { timeout_ms }))
        }
        (true, Some(SignalName::Kill)) => Ok(Way::Tree(TerminateMode::Force)),
        (true, Some(other)) => Err(Failure::usage(
            format!("cannot send {other} to a whole tree: a tree is only ended, with TERM or KILL"),
            "leave out `--tree` to signal the process and its group",
        )),
    }
}

/// Signals or ends a process, and returns what was done.
async fn end(processes: &Processes, row: &Row, way: Way) -> Result<String, Failure> {
    let followed = processes.followed(row);
    let (name, outcome) = (plain(&row.name), row.outcome());
    match way {
        Way::Signal(signal) if row.is_running() => {
            match followed.signal(signal).await {
                Err(error) if is_forgotten(&error) => {
                    return Err(Failure::new(
                        format!("cannot kill `{name}`: it has ended meanwhile"),
                        "see `remex ps`",
                    ));
                }
                sent => sent?,
            }
            Ok(format!("sent {signal} to {}", row.described()))
        }
        Way::Signal(_) if row.lives() => Err(Failure::new(
            format!(
                "cannot signal `{name}`: it has ended ({outcome}), and only what it started lives on{}",
                pids(&row.entry.living_pids)
            ),
            "`--tree` ends that, too",
        )),
        Way::Tree(mode) if row.lives() => {
            match followed.terminate_tree(mode).await {
                // The end of its session has ended all of it.
                Err(error) if is_forgotten(&error) => {}
                asked => asked?,
            }
            gone(processes, row, mode).await?;
            if !followed.closes_within(PATIENCE).await? {
                return Err(Failure::new(
                    format!("something holds the output of `{name}` open that the server cannot find"),
                    "look for it on that machine; it gave up the mark of the server, as a hostile program may",
                ));
            }
            Ok(format!("ended {name}{}", pids(&row.entry.living_pids)))
        }
        _ => Err(Failure::new(format!("cannot kill `{name}`: it has ended ({outcome})"), "see `remex ps`")),
    }
}

/// Names processes behind the name of a tree; nothing where the server does not tell which they are.
fn pids(pids: &[u32]) -> String {
    let list: Vec<_> = pids.iter().map(u32::to_string).collect();
    match list.len() {
        0 => String::new(),
        1 => format!(" (pid {})", list[0]),
        _ => format!(" (pids {})", list.join(", ")),
    }
}

/// Waits until nothing of the tree lives. Servers do not tell when that is, so they are asked.
async fn gone(processes: &Processes, row: &Row, mode: TerminateMode) -> Result<(), Failure> {
    let grace = match mode {
        TerminateMode::Force => Duration::ZERO,
        TerminateMode::Graceful { timeout_ms } => Duration::from_millis(timeout_ms),
    };
    let mut looks = tokio::time::interval(LOOK);
    let mut alive = Vec::new();
    let settled = tokio::time::timeout(grace.saturating_add(PATIENCE), async {
        loop {
            looks.tick().await;
            match processes.living(row).await? {
                Some(living) => alive = living,
                None => return Ok(()),
            }
        }
    });
    let settled = settled.await;
    settled.unwrap_or_else(|_| {
        Err(Failure::new(
            format!("something that `{}` started does not end{}", plain(&row.name), pids(&alive)),
            "look for a process that hangs in the kernel on that machine",
        ))
    })
}

/// Returns the signal in `-9`, `-KILL` or `-SIGKILL`, as other kills have it.
pub(crate) fn short_signal(word: &str) -> Option<&str> {
    let signal = word.strip_prefix('-')?;
    // Small letters are options of our own.
    let is_signal = !signal.contains(|letter: char| letter.is_ascii_lowercase());
    (is_signal && self::signal(signal).is_ok()).then_some(signal)
}

/// Reads `TERM`, `SIGTERM`, `term` or `15`.
pub(crate) fn signal(text: &str) -> Result<SignalName, String> {
    let known = "use a name such as `TERM` or `INT`, or its number on Linux".to_owned();
    if let Ok(number) = text.parse::<u8>() {
        let found = NUMBERS.iter().find(|(listed, _)| *listed == number);
        return found.map(|(_, signal)| *signal).ok_or(known);
    }
    text.to_ascii_uppercase().parse().map_err(|_| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_goes_by_name_or_number() {
        for text in ["TERM", "SIGTERM", "term", "sigterm", "15"] {
            assert_eq!(signal(text), Ok(SignalName::Term), "{text}");
        }
        for wrong in ["", "0", "16", "999", "-9", "NO"] {
            assert!(signal(wrong).is_err(), "{wrong}");
        }
    }
    #[test]
    fn a_signal_may_be_an_option_of_its_own() {
        for (word, signal) in [("-9", "9"), ("-KILL", "KILL"), ("-SIGHUP", "SIGHUP")] {
            assert_eq!(short_signal(word), Some(signal));
        }
        for other in ["-t", "-s", "--9", "-999", "-NO", "-", "9", "-h", "-V", "-term"] {
            assert_eq!(short_signal(other), None, "{other}");
        }
    }
}
