//! `remex logs`: prints the output of processes, and with `--follow` new output.

mod lines;
mod selection;

use std::{
    io::{self, Write as _},
    time::Duration,
};

use remex_client::process::{ProcessRef, Stream};
use tokio::task::JoinSet;

use self::selection::{Criteria, Item, Selection};
use super::Outcome;
use crate::{
    args::logs::Flags,
    console::gap_notice,
    remote::{
        endpoint::DefaultEndpoint,
        processes::{Processes, READ_BYTES, READ_WAIT},
        reconnect,
    },
    render::{
        failure::Failure,
        print,
        text::{padded, plain, width},
    },
};

/// How long the output may stay open after the exit before the user is told.
const OPEN_OUTPUT_NOTICE: Duration = Duration::from_secs(1);

pub(crate) async fn run(flags: &Flags) -> Outcome {
    if let (Some(since), Some(until)) = (flags.since, flags.until)
        && since > until
    {
        return Err(Failure::usage("`--until` is before `--since`", "swap the two times"));
    }
    let endpoint = flags.on.endpoint(DefaultEndpoint::RunningUserServer).await?;
    let client = endpoint.connect(reconnect::keep_session).await?;
    let processes = Processes::list(&client).await?;
    let rows = processes.find_all(&flags.names)?;
    let columns = rows.iter().map(|row| width(&plain(&row.name))).max().unwrap_or_default();
    let shown = rows.iter().map(|row| {
        let selection = Selection::new(Criteria {
            since_ms: flags.since,
            until_ms: flags.until,
            pattern: flags.grep.clone(),
            tail: flags.tail,
            times: flags.timestamps,
            prefix: (rows.len() > 1).then(|| format!("{} | ", padded(&plain(&row.name), columns))),
        });
        show(plain(&row.name), processes.process_ref(row), selection, flags.follow)
    });
    Box::pin(reconnect::with_notices(endpoint.kind, &client, all(shown, flags.follow))).await?;
    let _ = client.end().await;
    Ok(0)
}

/// Prints several logs one after the other, or concurrently with `--follow`.
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
            Err(Failure::new("printing the output ended early", "report this as a defect")
                .because(error.to_string()))
        })?;
    }
    Ok(())
}

async fn show(
    name: String,
    followed: ProcessRef,
    mut selection: Selection,
    follow: bool,
) -> Result<(), Failure> {
    let mut warned = false;
    let prefix = selection.prefix().map(str::to_owned);
    let about = prefix.as_deref();
    let newest = followed.cursor_before_newest(0).await?;
    let mut cursor = 0;
    let mut behind = true;
    loop {
        let wait = if behind { Duration::ZERO } else { READ_WAIT };
        let news = followed.read(cursor, READ_BYTES, wait).await?;
        cursor = news.last_seq;
        let is_all = news.chunks.is_empty();
        write(selection.take(news.gap.map(|gap| gap.bytes), news.chunks), about)?;
        if behind && (is_all || cursor >= newest) {
            behind = false;
            if follow {
                write(selection.caught_up(), about)?;
            }
        }
        if (!behind && !follow) || (news.is_closed && is_all) {
            return write(selection.finish(), about);
        }
        if news.exit.is_some() && !warned {
            warned = true;
            if !followed.closes_within(OPEN_OUTPUT_NOTICE).await? {
                print::note(format!(
                    "`{name}` has exited, but a process that it started keeps its output open; \
                     `remex kill {name} --tree` ends that"
                ));
            }
        }
    }
}

/// Writes output to stdout and stderr, in one write each.
fn write(items: Vec<Item>, about: Option<&str>) -> Result<(), Failure> {
    let mut items = items.into_iter().peekable();
    while let Some(item) = items.next() {
        match item {
            Item::Gap(bytes) => {
                // With several processes, prefix the notice with the name, like lines.
                print::note(format!("{}{}", about.unwrap_or_default(), gap_notice(bytes)));
            }
            Item::Bytes(stream, mut bytes) => {
                while let Some(Item::Bytes(_, more)) =
                    items.next_if(|next| matches!(next, Item::Bytes(other, _) if *other == stream))
                {
                    bytes.extend(more);
                }
                match stream {
                    Stream::Stderr => io::stderr()
                        .write_all(&bytes)
                        .map_err(|error| Failure::io("write to standard error", &error))?,
                    // Also streams that this version does not know.
                    _ => print::out(&bytes)?,
                }
            }
        }
    }
    Ok(())
}
