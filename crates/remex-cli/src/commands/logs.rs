//! `remex logs`: prints the output of processes, and with `--follow` new output.

mod lines;
mod record;
mod selection;
mod source;

use std::{
    io::{self, Write as _},
    time::Duration,
};

use remex_client::process::{OutputBatch, Stream};
use tokio::task::JoinSet;

use self::{
    lines::PartialFirstLine,
    selection::{Context, Criteria, Item, LineFormat, Matching, Missing, Select, Selection},
    source::{Position, Source},
};
use super::Outcome;
use crate::{
    args::{byte_range::ByteRange, logs::Flags},
    console::gap_notice,
    remote::{
        endpoint::DefaultEndpoint,
        processes::{Processes, READ_BYTES},
        reconnect,
    },
    render::{
        failure::Failure,
        local_time::Zone,
        print,
        text::{padded, plain, width},
    },
};

/// How long the output may stay open after the exit before a notice is printed.
const OPEN_OUTPUT_NOTICE: Duration = Duration::from_secs(1);

/// How long a line is likely to be, how much is read for the last lines at first, and how much more if that was not
/// enough.
const LINE_GUESS: u64 = 256;
const FIRST_TAIL: u64 = 16 << 10;
const TAIL_GROWTH: u64 = 8;

/// With so much read, a line of a stream that was silent before is taken for whole: else a message on stderr after much
/// output on stdout would make all of that be read.
const LONG_TAIL: u64 = 64 << 10;

/// Which output of a process to print.
#[derive(Debug)]
struct PrintOptions {
    criteria: Criteria,
    range: Option<ByteRange>,
    follow: bool,
    /// How much output it has written, as far as known.
    produced: u64,
}

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let until_ms = flags.until.map(|until| until.after(flags.since));
    if let (Some(since), Some(until)) = (flags.since, until_ms)
        && since > until
    {
        return Err(Failure::usage("`--until` is before `--since`", "swap the two times"));
    }
    let endpoint = flags.on.endpoint(DefaultEndpoint::RunningUserServer).await?;
    let client = endpoint.connect(reconnect::keep_session).await?;
    let processes = Processes::list(&client).await?;
    let rows = processes.find_all(&flags.names)?;
    let columns = rows.iter().map(|row| width(&plain(&row.name))).max().unwrap_or_default();
    let matching = matching(flags)?;
    let shown = rows.iter().map(|row| {
        let format = match flags.format.json {
            true => LineFormat::Json { name: row.name.clone() },
            false => LineFormat::Text {
                prefix: (rows.len() > 1).then(|| format!("{} | ", padded(&plain(&row.name), columns))),
                times: flags.timestamps.then_some(if flags.utc { Zone::Utc } else { Zone::Local }),
            },
        };
        let criteria = Criteria {
            since_ms: flags.since,
            until_ms,
            matching: matching.clone(),
            tail: flags.tail,
            format,
        };
        let wanted =
            PrintOptions { criteria, range: flags.bytes, follow: flags.follow, produced: row.output_bytes() };
        let (name, source) = (plain(&row.name), Source { process: processes.listed_ref(row) });
        async move {
            let command = format!("remex logs -f {name}");
            let shown = show(name.clone(), source, wanted).await;
            shown.map_err(|failure| failure.of_restarted(&name, &command))
        }
    });
    Box::pin(reconnect::with_notices(endpoint.kind, &client, all(shown, flags.follow))).await?;
    let _ = client.end().await;
    Ok(0)
}

/// Returns which lines `--grep` and its options select.
fn matching(flags: &Flags) -> Result<Option<Matching>, Failure> {
    let Some(pattern) = &flags.grep else { return Ok(None) };
    let regex = match flags.ignore_case {
        true => pattern.ignoring_case().map_err(|error| Failure::usage(error.why, error.hint))?,
        false => pattern.regex(),
    };
    let around = flags.context.unwrap_or(0);
    let context = Context {
        before: flags.before_context.unwrap_or(around),
        after: flags.after_context.unwrap_or(around),
    };
    let select = if flags.invert_match { Select::Others } else { Select::Matches };
    Ok(Some(Matching { regex, select, context }))
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

async fn show(name: String, source: Source, wanted: PrintOptions) -> Result<(), Failure> {
    let PrintOptions { criteria, range, follow, produced } = wanted;
    let prefix = criteria.format.prefix().map(str::to_owned);
    let about = prefix.as_deref();
    let newest = source.newest().await?;
    if let Some(range) = range {
        let range = range.of(newest.offset.unwrap_or(produced));
        return show_bytes(&source, Selection::new(criteria), range, newest).await;
    }
    let start = match criteria.since_ms {
        Some(since) => source.since(since).await?,
        None => Position::START,
    };
    let end = match criteria.until_ms {
        Some(until) => source.until(until, newest).await?,
        None => newest,
    };
    let (selection, position) = match criteria.tail {
        Some(lines) => last_lines(&source, &criteria, lines, start, end).await?,
        None => {
            let mut selection = Selection::new(criteria);
            let show = |batch: OutputBatch, _| write(selection.take_batch(batch), about);
            let position = read_all(&source, start, end, show).await?;
            (selection, position)
        }
    };
    if follow {
        follow_on(&name, &source, selection, position).await
    } else {
        let mut selection = selection;
        write(selection.finish(), about)
    }
}

/// Prints a range of bytes: the first one, and the first one after it.
async fn show_bytes(
    source: &Source,
    mut selection: Selection,
    (first, last): (u64, u64),
    newest: Position,
) -> Result<(), Failure> {
    let prefix = selection.prefix().map(str::to_owned);
    if first < last {
        let end = Position { seq: newest.seq, offset: Some(last) };
        let show = |mut batch: OutputBatch, at: Position| {
            trim(&mut batch, at, first, last);
            write(selection.take_batch(batch), prefix.as_deref())
        };
        read_all(source, source.at(first).await?, end, show).await?;
    }
    write(selection.finish(), prefix.as_deref())
}

/// Removes the bytes before `first` and from `last` on from a batch that was read at a position.
fn trim(batch: &mut OutputBatch, at: Position, first: u64, last: u64) {
    let Some(mut offset) = at.offset else { return };
    if let Some(gap) = &mut batch.gap {
        let (start, end) = (offset.max(first), (offset + gap.bytes.unwrap_or(0)).min(last));
        offset += gap.bytes.unwrap_or(0);
        gap.bytes = gap.bytes.map(|_| end.saturating_sub(start));
    }
    batch.gap.take_if(|gap| gap.bytes == Some(0));
    for chunk in &mut batch.chunks {
        let len = chunk.bytes.len() as u64;
        let within =
            |bound: u64| usize::try_from(bound.saturating_sub(offset).min(len)).unwrap_or(usize::MAX);
        let (from, to) = (within(first), within(last));
        chunk.bytes = chunk.bytes.slice(from..to.max(from));
        offset += len;
    }
    batch.chunks.retain(|chunk| !chunk.bytes.is_empty());
}

/// Reads everything between two positions, and returns the position after it.
async fn read_all(
    source: &Source,
    start: Position,
    end: Position,
    mut show: impl FnMut(OutputBatch, Position) -> Result<(), Failure>,
) -> Result<Position, Failure> {
    let mut position = start;
    while !position.has_reached(end) {
        let batch = source.read_to(position, end).await?;
        let (before, is_all) = (position, batch.chunks.is_empty());
        position = position.after(&batch);
        show(batch, before)?;
        if is_all {
            break;
        }
    }
    Ok(position)
}

/// Returns the selection of the last lines between two positions, which reads as little as it can, and the position
/// after them.
async fn last_lines(
    source: &Source,
    criteria: &Criteria,
    lines: usize,
    start: Position,
    end: Position,
) -> Result<(Selection, Position), Failure> {
    let mut bytes = (lines as u64).saturating_mul(LINE_GUESS).clamp(FIRST_TAIL, READ_BYTES);
    loop {
        let from = match end.offset {
            Some(offset) if offset > bytes => source.at(offset - bytes).await?,
            _ => Position::START,
        };
        // The lines before the first match may be anywhere.
        let is_all = from.seq <= start.seq || criteria.has_context();
        let (from, mut selection) = if is_all {
            (start, Selection::new(criteria.clone()))
        } else {
            let partial = if bytes < LONG_TAIL { PartialFirstLine::Each } else { PartialFirstLine::First };
            (from, Selection::from_the_middle(criteria.clone(), partial))
        };
        let take = |batch, _| {
            selection.take_batch(batch);
            Ok(())
        };
        let position = read_all(source, from, end, take).await?;
        if is_all || selection.has_whole_tail() {
            return Ok((selection, position));
        }
        bytes = bytes.saturating_mul(TAIL_GROWTH);
    }
}

/// Prints new output until the process has closed.
async fn follow_on(
    name: &str,
    source: &Source,
    mut selection: Selection,
    mut position: Position,
) -> Result<(), Failure> {
    let prefix = selection.prefix().map(str::to_owned);
    let about = prefix.as_deref();
    write(selection.caught_up(), about)?;
    let mut warned = false;
    loop {
        let batch = source.read_on(position).await?;
        position = position.after(&batch);
        let (is_closed, has_exited) = (batch.is_closed, batch.exit.is_some());
        write(selection.take_batch(batch), about)?;
        if is_closed {
            return write(selection.finish(), about);
        }
        if has_exited && !warned {
            warned = true;
            if !source.process.closes_within(OPEN_OUTPUT_NOTICE).await? {
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
            Item::Line(mut lines) => {
                while let Some(Item::Line(more)) = items.next_if(|next| matches!(next, Item::Line(_))) {
                    lines.push_str(&more);
                }
                print::out(lines)?;
            }
            Item::Gap(Missing { bytes, cause }) => {
                // With several processes, prefix the notice with the name, like lines.
                print::note(format!("{}{}", about.unwrap_or_default(), gap_notice(bytes, cause)));
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
