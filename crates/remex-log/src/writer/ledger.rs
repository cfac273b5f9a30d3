//! The state of a log that does not depend on its current file. Start at [`Ledger`].

use std::{
    collections::BTreeMap,
    io,
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::rand::{GetRandomFlags, getrandom};

use super::{BLOCK, retention::DroppedRuns};
use crate::{
    base::{
        event::{Cause, End, Produced, Seq, Stream},
        format::{
            DroppedOutput, GAP_RECORD, HEAD_LEN, Kind, MAX_END_PAYLOAD, RECORD_LEN, RecordHeader,
            SegmentHeader, push_record,
        },
        names::SegmentName,
    },
    scan::Summary,
};

/// Numbers, totals, and the records that every new segment repeats.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) next_seq: Seq,
    /// Bytes of output before the next event, including dropped ones.
    pub(super) offset: u64,
    pub(super) produced: Produced,
    pub(super) dropped: u64,
    dropped_runs: DroppedRuns,
    /// The run of dropped output that is not written yet; its number is `next_seq - 1`.
    dropped_run: Option<DroppedRun>,
    pub(super) exited: Option<End>,
    pub(super) closed: Option<End>,
    pub(super) notes: BTreeMap<u8, Vec<u8>>,
    /// When the last event happened.
    pub(super) at_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct DroppedRun {
    offset: u64,
    dropped: DroppedOutput,
}

impl Ledger {
    /// Returns the ledger of a log that holds what `summary` says.
    pub(super) fn new(summary: &Summary, at_ms: u64) -> Ledger {
        Ledger {
            next_seq: summary.next_seq,
            offset: summary.offset,
            produced: summary.produced,
            dropped: summary.dropped,
            dropped_runs: DroppedRuns::default(),
            dropped_run: None,
            exited: summary.exited.clone(),
            closed: summary.closed.clone(),
            notes: summary.notes.clone(),
            at_ms,
        }
    }

    /// Returns the number and offset of the next record.
    pub(super) fn next_record(&self) -> SegmentName {
        match &self.dropped_run {
            Some(run) => SegmentName { first_seq: self.next_seq - 1, first_offset: run.offset },
            None => SegmentName { first_seq: self.next_seq, first_offset: self.offset },
        }
    }

    /// Counts an event, and returns its number.
    pub(super) fn count(&mut self, at_ms: u64) -> Seq {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.at_ms = at_ms;
        seq
    }

    /// Counts output that is about to be written.
    pub(super) fn produce(&mut self, stream: Stream, len: u64) {
        self.produced.add(stream, len);
        self.offset += len;
    }

    /// Counts output that was dropped.
    pub(super) fn drop_output(&mut self, stream: Stream, len: u64, cause: Cause) {
        let offset = self.offset;
        let run = self.dropped_run.get_or_insert_with(|| {
            self.next_seq += 1;
            DroppedRun { offset, dropped: DroppedOutput { bytes: Produced::default(), cause } }
        });
        run.dropped.bytes.add(stream, len);
        self.dropped_runs.push(offset, len);
        self.produce(stream, len);
        self.dropped += len;
    }

    /// Returns whether a run of dropped output is not written yet.
    pub(super) fn has_dropped_run(&self) -> bool {
        self.dropped_run.is_some()
    }

    pub(super) fn unwritten_dropped_run(&self) -> Option<Vec<u8>> {
        self.dropped_run.map(|run| run.dropped.encode().to_vec())
    }

    /// Ends the run of dropped output with a record, and returns whether there was one.
    pub(super) fn push_dropped_run(&mut self, records: &mut Vec<u8>, key: [u64; 2]) -> bool {
        let Some(run) = self.dropped_run.take() else { return false };
        let payload = run.dropped.encode();
        let header = RecordHeader::new(Kind::Gap, self.next_seq - 1, run.offset, self.at_ms, &payload);
        push_record(records, key, &header, &payload);
        true
    }

    /// Returns the bytes of output after `offset` that were not dropped.
    pub(super) fn held_after(&mut self, offset: u64) -> u64 {
        let dropped = self.dropped_runs.after(offset);
        self.offset.saturating_sub(offset).saturating_sub(dropped)
    }

    /// Returns the space to keep for the exit and the close, and for runs of dropped output before them.
    pub(super) fn end_reserve(&self) -> u64 {
        const END: u64 = GAP_RECORD + (RECORD_LEN + MAX_END_PAYLOAD) as u64;
        match (&self.exited, &self.closed) {
            (_, Some(_)) => 0,
            (Some(_), None) => END,
            (None, None) => 2 * END,
        }
    }

    /// Returns the least that a new segment takes.
    pub(super) fn next_segment_reserve(&self) -> u64 {
        (self.head_len() + self.end_reserve() + GAP_RECORD).next_multiple_of(BLOCK)
    }

    /// Returns the space to keep in a segment: for its end, and to begin the next one with when the disk is full.
    pub(super) fn reserve(&self) -> u64 {
        self.end_reserve() + if self.closed.is_none() { self.next_segment_reserve() } else { 0 }
    }

    /// Returns the header of a segment that starts now, and its first bytes: the head, and copies of what must not be
    /// evicted.
    pub(super) fn new_segment(&self) -> io::Result<(SegmentHeader, Vec<u8>)> {
        let (mut produced, mut dropped) = (self.produced, self.dropped);
        if let Some(run) = &self.dropped_run {
            // It will be written to the new segment.
            produced -= run.dropped.bytes;
            dropped -= run.dropped.bytes.total();
        }
        let mut salt = [0; 8];
        getrandom(&mut salt, GetRandomFlags::empty())?;
        let seq = |end: &Option<End>| end.as_ref().map_or(0, |end| end.seq);
        let header = SegmentHeader {
            name: self.next_record(),
            salt: u64::from_le_bytes(salt),
            created_ms: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_millis() as u64),
            produced,
            dropped,
            exited: seq(&self.exited),
            closed: seq(&self.closed),
        };
        let mut head = header.encode().to_vec();
        let SegmentName { first_seq, first_offset } = header.name;
        for (kind, end) in self.ends() {
            let payload = end.payload.as_deref().unwrap_or_default();
            let record = RecordHeader::new(kind, end.seq, first_offset, end.at_ms, payload);
            push_record(&mut head, header.key(), &RecordHeader { events: 0, ..record }, payload);
        }
        for (tag, payload) in &self.notes {
            let record = RecordHeader::new(Kind::Note(*tag), first_seq, first_offset, 0, payload);
            push_record(&mut head, header.key(), &record, payload);
        }
        Ok((header, head))
    }

    /// Returns the length of the first bytes of a new segment.
    pub(super) fn head_len(&self) -> u64 {
        let ends = self.ends().filter_map(|(_, end)| end.payload.as_ref());
        let records = ends.chain(self.notes.values());
        HEAD_LEN as u64
            + records.map(|payload| (RECORD_LEN + payload.len().next_multiple_of(8)) as u64).sum::<u64>()
    }

    /// Returns the exit and the close whose payloads are known.
    fn ends(&self) -> impl Iterator<Item = (Kind, &End)> {
        let ends = [(Kind::Exited, &self.exited), (Kind::Closed, &self.closed)];
        ends.into_iter()
            .filter_map(|(kind, end)| Some((kind, end.as_ref()?)))
            .filter(|(_, end)| end.payload.is_some())
    }
}
