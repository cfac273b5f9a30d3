//! `remex logs`: what a process has said, and with `--follow` what it says.

mod lines;
mod selection;

use std::{
    io::{self, Write as _},
    time::Duration,
};

use clap::Args;
use regex_automata::{meta::Regex, util::syntax};
use remex_proto::process::Stream;
use tokio::task::JoinSet;

use self::selection::{Item, Selection, Wanted};
use super::Outcome;
use crate::{
    console::gone,
    cut,
    failure::Failure,
    find::Processes,
    followed::{Followed, Patience},
    moment::moment,
    place::{On, Otherwise},
    print,
    text::{padded, plain, width},
};

/// How long the output of a process may stay open after its end before that is worth a word.
const OPEN: Duration = Duration::from_secs(1);

/// Flags of `remex logs`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// The processes, each by its name or the beginning of it; of several, each line begins with the name
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    on: On,

    /// Go on until the process has ended
    #[arg(short, long)]
    follow: bool,

    /// Only what was said since then: `5m` ago, a time of day such as `14:30`, or `2026-11-15T14:30:00Z`
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<u64>,

    /// Only what was said until then, in the same words
    #[arg(long, value_name = "TIME", value_parser = moment, conflicts_with = "follow")]
    until: Option<u64>,

    /// Only lines that match this regular expression
    #[arg(long, value_name = "REGEX", value_parser = pattern)]
    grep: Option<Regex>,

    /// Only the last lines of what was said so far
    #[arg(short = 'n', long, value_name = "LINES")]
    tail: Option<usize>,

    /// Put the time before each line
    #[arg(short, long)]
    timestamps: bool,
}

const EXAMPLES: &str = "\
Examples:
  What a process has said so far:
    remex logs build
  The last lines, and what follows until it ends:
    remex logs build --tail 20 --follow
  What went wrong in the last ten minutes, with times:
    remex logs build --since 10m --grep '(?i)error' --timestamps
  What it said between two times of day:
    remex logs build --since 06:00 --until 12:00
  What several say, each line with the name:
    remex logs --follow build lint
";

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let place = flags.on.place(Otherwise::OwnIfThere).await?;
    let client = place.connect(cut::outlive).await?;
    let processes = Processes::list(&client).await?;
    let rows = processes.find_all(&flags.names)?;
    let columns = rows.iter().map(|row| width(&plain(&row.name))).max().unwrap_or_default();
    let shown = rows.iter().map(|row| {
        let selection = Selection::new(Wanted {
            since_ms: flags.since,
            until_ms: flags.until,
            pattern: flags.grep.clone(),
            tail: flags.tail,
            times: flags.timestamps,
            prefix: (rows.len() > 1).then(|| format!("{} | ", padded(&plain(&row.name), columns))),
        });
        show(plain(&row.name), processes.followed(row), selection, flags.follow)
    });
    cut::told(place.kind, &client, all(shown, flags.follow)).await?;
    let _ = client.end().await;
    Ok(0)
}

/// Shows several one after the other, or all at once while they go on.
async fn all(
    shown: impl Iterator<Item = impl Future<Output = Result<(), Failure>> + Send + 'static>,
    follow: bool,
) -> Result<(), Failure> {
    if !follow {
        for one in shown {
            one.await?;
        }
        return Ok(());
    }
    let mut following: JoinSet<_> = JoinSet::new();
    for one in shown {
        following.spawn(one);
    }
    while let Some(ended) = following.join_next().await {
        ended.unwrap_or_else(|error| {
            Err(Failure::new(format!("a look at the output ended early: {error}"), "report this as a defect"))
        })?;
    }
    Ok(())
}

async fn show(
    name: String,
    followed: Followed,
    mut selection: Selection,
    follow: bool,
) -> Result<(), Failure> {
    let mut warned = false;
    let prefix = selection.prefix().map(str::to_owned);
    let about = prefix.as_deref();
    let newest = followed.shortly_before(0).await?;
    let mut cursor = 0;
    let mut behind = true;
    loop {
        let patience = if behind { Patience::None } else { Patience::Some };
        let news = followed.read(&mut cursor, patience).await?;
        let is_all = news.pieces.is_empty();
        write(selection.take(news.gap.map(|gap| gap.bytes), news.pieces), about)?;
        if behind && (is_all || cursor >= newest) {
            behind = false;
            if follow {
                write(selection.caught_up(), about)?;
            }
        }
        if (!behind && !follow) || (news.closed && is_all) {
            return write(selection.finish(), about);
        }
        if news.end.is_some() && !warned {
            warned = true;
            if !followed.closes_within(OPEN).await? {
                print::note(format!(
                    "`{name}` has ended, but something that it started holds its output open; \
                     `remex kill {name} --tree` ends that"
                ));
            }
        }
    }
}

/// Writes each stream where it belongs; what goes to the same one goes at once.
fn write(items: Vec<Item>, about: Option<&str>) -> Result<(), Failure> {
    let mut items = items.into_iter().peekable();
    while let Some(item) = items.next() {
        match item {
            Item::Gap(bytes) => {
                // Of which one it is when there are several, as with its lines.
                print::note(format!("{}{}", about.unwrap_or_default(), gone(bytes)));
            }
            Item::Bytes(stream, mut bytes) => {
                while let Some(Item::Bytes(_, more)) =
                    items.next_if(|next| matches!(next, Item::Bytes(other, _) if *other == stream))
                {
                    bytes.extend(more);
                }
                match stream {
                    Stream::Stdout | Stream::Pty => print::out(&bytes)?,
                    Stream::Stderr => io::stderr()
                        .write_all(&bytes)
                        .map_err(|error| Failure::io("write to standard error", &error))?,
                }
            }
        }
    }
    Ok(())
}

/// Compiles an expression that matches bytes; what is no UTF-8 can be matched too.
fn pattern(text: &str) -> Result<Regex, String> {
    Regex::builder()
        .syntax(syntax::Config::new().utf8(false))
        .configure(Regex::config().utf8_empty(false))
        .build(text)
        .map_err(|error| match error.syntax_error() {
            Some(syntax) => syntax.to_string(),
            None => error.to_string(),
        })
}
