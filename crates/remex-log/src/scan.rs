//! Summarizes a log from the names of its segments and the contents of its last one. Start at [`inspect`].

use std::{collections::BTreeMap, fs, io, path::Path};

use crate::base::{
    event::{End, Produced, Seq, Stream},
    format::{HEAD_LEN, Kind, RECORD_LEN, RecordHeader, SegmentHeader},
    names::{self, SegmentName},
    scanner::{Found, Opened, Scanner},
};

/// How often a listing that was outdated before it was used is repeated.
const MAX_ATTEMPTS: usize = 4;

/// The contents of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The first event that is not evicted, or the next one.
    pub first_seq: Seq,
    /// Bytes of output before it.
    pub first_offset: u64,
    /// The next event.
    pub next_seq: Seq,
    /// Bytes of output before it, including dropped ones.
    pub offset: u64,
    /// Bytes produced, by stream.
    pub produced: Produced,
    /// Bytes that were dropped before they were written.
    pub dropped: u64,
    /// Whether all of these numbers are exact; not if parts of the log are damaged.
    pub is_exact: bool,
    /// Bytes of the files.
    pub disk_bytes: u64,
    /// The exit, once it is recorded.
    pub exited: Option<End>,
    /// The close, once it is recorded.
    pub closed: Option<End>,
    /// The newest note of each tag.
    pub notes: BTreeMap<u8, Vec<u8>>,
}

/// Returns what the log in `dir` holds, for a listing. It may be written at the same time.
///
/// Reads only the last segment, because every segment starts with what is known so far.
///
/// # Errors
///
/// If the directory or its last segment cannot be read now, or has a newer format.
pub fn inspect(dir: impl AsRef<Path>) -> io::Result<Summary> {
    let mut scan = LogScan::new(dir.as_ref())?;
    for _ in 0..MAX_ATTEMPTS {
        // The last segment of the listing may be evicted by now.
        if scan.tail.is_some() || scan.segments.is_empty() {
            break;
        }
        scan = LogScan::new(dir.as_ref())?;
    }
    Ok(scan.summary)
}

/// A summary, and the state that a writer needs to continue.
#[derive(Debug)]
pub(crate) struct LogScan {
    pub(crate) summary: Summary,
    /// The segments and their lengths.
    pub(crate) segments: Vec<(SegmentName, u64)>,
    /// The last segment; `None` if there is none, or if its head is unusable.
    pub(crate) tail: Option<TailState>,
    /// Bytes after the last complete record that are not a torn write: they held an unknown number of events.
    pub(crate) damaged: u64,
}

/// The end of the last segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailState {
    pub(crate) header: SegmentHeader,
    /// Where the last whole record ends.
    pub(crate) end: u64,
    pub(crate) has_events: bool,
    /// When the last event happened.
    pub(crate) at_ms: u64,
}

impl LogScan {
    pub(crate) fn new(dir: &Path) -> io::Result<LogScan> {
        let names = names::list(dir)?.into_iter();
        let segments = names.map(|name| (name, file_len(&dir.join(name.file_name())))).collect();
        let mut scan = LogScan::of(segments);
        let mut scanner = Scanner::default();
        scan.read(&mut scanner, dir)?;
        scan.summary.exited = scan.restored(&mut scanner, dir, Kind::Exited, scan.summary.exited.clone())?;
        scan.summary.closed = scan.restored(&mut scanner, dir, Kind::Closed, scan.summary.closed.clone())?;
        Ok(scan)
    }

    /// Returns what the names and lengths of these segments tell, without reading any.
    pub(crate) fn of(segments: Vec<(SegmentName, u64)>) -> LogScan {
        let first = segments.first().map_or(SegmentName::FIRST, |(name, _)| *name);
        let summary = Summary {
            first_seq: first.first_seq,
            first_offset: first.first_offset,
            next_seq: 1,
            is_exact: true,
            disk_bytes: segments.iter().map(|(_, len)| len).sum(),
            ..Summary::default()
        };
        LogScan { summary, segments, tail: None, damaged: 0 }
    }

    /// Reads the last segment with a usable head.
    fn read(&mut self, scanner: &mut Scanner, dir: &Path) -> io::Result<()> {
        for index in (0..self.segments.len()).rev() {
            if let Opened::Ready(header) = scanner.open(dir, self.segments[index].0)? {
                self.begin(&header);
                let tail = self.scan(scanner, header)?;
                if index + 1 == self.segments.len() {
                    self.tail = Some(tail);
                    return Ok(());
                }
                break;
            }
        }
        if let Some((name, len)) = self.segments.last().copied() {
            self.jump(name.first_seq, name.first_offset);
            // A shorter one was never finished, because a segment gets its name after its head.
            self.damaged = if len < HEAD_LEN as u64 { 0 } else { len };
            self.summary.is_exact &= self.damaged == 0;
        }
        Ok(())
    }

    fn begin(&mut self, header: &SegmentHeader) {
        let summary = &mut self.summary;
        summary.next_seq = header.name.first_seq;
        summary.offset = header.name.first_offset;
        summary.produced = header.produced;
        summary.dropped = header.dropped;
        let end = |seq| (seq > 0).then_some(End { seq, at_ms: 0, payload: None });
        summary.exited = end(header.exited);
        summary.closed = end(header.closed);
    }

    fn scan(&mut self, scanner: &mut Scanner, header: SegmentHeader) -> io::Result<TailState> {
        let len = scanner.len()?;
        let mut tail =
            TailState { header, end: HEAD_LEN as u64, has_events: false, at_ms: header.created_ms };
        let mut at = tail.end;
        self.damaged = 0;
        loop {
            match scanner.look(at, 0)? {
                Found::End => return Ok(tail),
                Found::Damage => {
                    let seqs = self.summary.next_seq..=Seq::MAX - 1;
                    match scanner.resync(at + 8, &seqs, 0)? {
                        Some(found) => at = found,
                        None if scanner.is_zero_from(at)? => return Ok(tail),
                        None => {
                            self.damaged = len.saturating_sub(at);
                            self.summary.is_exact = false;
                            return Ok(tail);
                        }
                    }
                }
                Found::Record(record) => {
                    if at.saturating_add(RECORD_LEN as u64 + u64::from(record.len)) > len {
                        return Ok(tail);
                    }
                    if record.events > 0 {
                        tail.has_events = true;
                        tail.at_ms = record.at_ms;
                    }
                    self.apply(scanner, at, &record)?;
                    at = at.saturating_add(record.size());
                    tail.end = at;
                }
            }
        }
    }

    /// Counts a record.
    fn apply(&mut self, scanner: &mut Scanner, at: u64, record: &RecordHeader) -> io::Result<()> {
        if let Some(last) = record.last_seq() {
            self.jump(record.seq, record.offset);
            self.summary.next_seq = self.summary.next_seq.max(last.saturating_add(1));
        }
        match record.kind {
            Kind::Output(stream) => {
                self.summary.produced.add(stream, u64::from(record.len));
                self.summary.offset = self.summary.offset.saturating_add(u64::from(record.len));
            }
            Kind::Gap => match scanner.dropped(at, record, 0)? {
                Some(dropped) => {
                    let bytes = dropped.bytes.total();
                    self.summary.produced += dropped.bytes;
                    self.summary.offset = self.summary.offset.saturating_add(bytes);
                    self.summary.dropped = self.summary.dropped.saturating_add(bytes);
                }
                None => self.summary.is_exact = false,
            },
            Kind::Exited | Kind::Closed => {
                let is_whole = scanner.load_payload(at, record, 0)?;
                let payload = is_whole.then(|| scanner.payload(at, record).to_vec());
                let end = Some(End { seq: record.seq, at_ms: record.at_ms, payload });
                match record.kind {
                    Kind::Exited => self.summary.exited = end,
                    _ => self.summary.closed = end,
                }
            }
            Kind::Note(tag) => {
                if scanner.load_payload(at, record, 0)? {
                    self.summary.notes.insert(tag, scanner.payload(at, record).to_vec());
                }
            }
            Kind::Unknown => {}
        }
        Ok(())
    }

    /// Returns the exit or close, from an older segment if its record in the last one is damaged.
    fn restored(
        &self,
        scanner: &mut Scanner,
        dir: &Path,
        kind: Kind,
        end: Option<End>,
    ) -> io::Result<Option<End>> {
        let Some(damaged) = end.as_ref().filter(|end| end.payload.is_none()) else { return Ok(end) };
        for (name, _) in self.segments.iter().rev().skip(1) {
            if !matches!(scanner.open(dir, *name)?, Opened::Ready(_)) {
                continue;
            }
            let mut at = Some(HEAD_LEN as u64);
            while let Some(position) = at {
                at = match scanner.look(position, 0)? {
                    Found::End => None,
                    Found::Damage => scanner.resync(position + 8, &(1..=Seq::MAX - 1), 0)?,
                    Found::Record(record) => {
                        let is_it = record.kind == kind && record.seq == damaged.seq;
                        if is_it && scanner.load_payload(position, &record, 0)? {
                            let payload = Some(scanner.payload(position, &record).to_vec());
                            return Ok(Some(End { seq: record.seq, at_ms: record.at_ms, payload }));
                        }
                        Some(position.saturating_add(record.size()))
                    }
                };
            }
        }
        Ok(end)
    }

    /// Continues at a later event, if those before it cannot be read.
    pub(crate) fn jump(&mut self, seq: Seq, offset: u64) {
        let summary = &mut self.summary;
        if seq <= summary.next_seq && offset <= summary.offset {
            return;
        }
        summary.is_exact = false;
        summary.next_seq = summary.next_seq.max(seq);
        // The stream is unknown, but the total must be right.
        summary.produced.add(Stream::Stdout, offset.saturating_sub(summary.offset));
        summary.offset = summary.offset.max(offset);
    }
}

fn file_len(path: &Path) -> u64 {
    // Anything else with the name of a segment counts as a damaged segment.
    fs::symlink_metadata(path)
        .map_or(0, |metadata| if metadata.is_file() { metadata.len() } else { HEAD_LEN as u64 })
}
