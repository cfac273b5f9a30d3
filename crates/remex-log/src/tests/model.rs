//! Random operations on a log, compared with a list of events.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*, sample::Index};

use super::*;

#[derive(Clone, Debug)]
enum Operation {
    Append { stream: u8, len: usize, hold: Option<Index> },
    Lose { stream: u8, len: u64 },
    Exited,
    Note { tag: u8, len: usize },
    Evict { hold: Option<Index> },
    Reopen,
    Read { reader: Index, most: usize },
    Seek { reader: Index, seq: Index },
}

fn operation() -> impl Strategy<Value = Operation> {
    let hold = || proptest::option::of(any::<Index>());
    let len = prop_oneof![6 => 0..200_usize, 3 => 0..5000_usize, 1 => 0..70_000_usize];
    prop_oneof![
        20 => (0..3_u8, len, hold()).prop_map(|(stream, len, hold)| Operation::Append { stream, len, hold }),
        2 => (0..3_u8, 1..100_000_u64).prop_map(|(stream, len)| Operation::Lose { stream, len }),
        1 => Just(Operation::Exited),
        2 => (0..3_u8, 0..300_usize).prop_map(|(tag, len)| Operation::Note { tag, len }),
        2 => hold().prop_map(|hold| Operation::Evict { hold }),
        2 => Just(Operation::Reopen),
        8 => (any::<Index>(), 0..50_usize).prop_map(|(reader, most)| Operation::Read { reader, most }),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(reader, seq)| Operation::Seek { reader, seq }),
    ]
}

/// A log, what should be in it, and readers at different places.
struct Model {
    log: Log,
    options: Options,
    notes: BTreeMap<u8, Vec<u8>>,
    produced: [u64; 3],
    dropped: u64,
    has_exited: bool,
    readers: Vec<(Reader, Cursor)>,
}

const STREAMS: [Stream; 3] = [Stream::Stdout, Stream::Stderr, Stream::Pty];

impl Model {
    fn new(options: Options) -> Model {
        let log = Log::new(options);
        let readers = (0..3).map(|_| (Reader::open(log.path()).unwrap(), Cursor::START)).collect();
        let notes = BTreeMap::new();
        Model { log, options, notes, produced: [0; 3], dropped: 0, has_exited: false, readers }
    }

    /// Returns the bytes up to and including event `seq`.
    fn offset_after(&self, seq: Seq) -> u64 {
        self.log.events[..seq as usize].iter().map(|event| event.extent().2.unwrap()).sum()
    }

    fn hold(&self, hold: Option<Index>) -> Hold {
        match hold {
            None => Hold::Nothing,
            Some(index) => {
                // Dropped output is acknowledged only once its record is written.
                let seq = index.index(self.log.last() as usize + 1) as Seq;
                Hold::After(Point { seq, offset: self.offset_after(seq) })
            }
        }
    }

    fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Append { stream, len, hold } => self.append(*stream, *len, self.hold(*hold)),
            Operation::Lose { stream, len } => {
                self.log.drop_output(STREAMS[usize::from(*stream)], *len);
                self.produced[usize::from(*stream)] += len;
                self.dropped += len;
            }
            Operation::Exited if self.has_exited => {}
            Operation::Exited => {
                assert!(self.log.exited(b"status").is_written);
                self.has_exited = true;
            }
            Operation::Note { tag, len } => {
                let payload = vec![*tag; *len];
                self.log.writer().note(*tag, &payload).unwrap();
                self.notes.insert(*tag, payload);
            }
            Operation::Evict { hold } => {
                let hold = self.hold(*hold);
                let first = self.log.writer().position().first_seq;
                self.log.writer().evict(hold);
                self.check_held(first, hold);
            }
            Operation::Reopen => self.reopen(),
            Operation::Read { reader, most } => self.read(reader.index(self.readers.len()), *most),
            Operation::Seek { reader, seq } => {
                let seq = seq.index(self.log.last() as usize + 1) as Seq;
                let seq = seq.min(self.log.writer().position().written_seq);
                let index = reader.index(self.readers.len());
                let (reader, cursor) = &mut self.readers[index];
                *cursor = reader.cursor_after(seq).unwrap();
                assert_eq!(cursor.seq, seq);
                let offset = cursor.offset;
                assert!(offset.is_none_or(|offset| offset == self.offset_after(seq)));
                let first = self.log.writer().position().first_seq;
                assert!(offset.is_some() || seq + 1 < first, "{seq} is not evicted");
            }
        }
        self.check_sums();
    }

    fn append(&mut self, stream: u8, len: usize, hold: Hold) {
        let (_, at_ms) = self.log.next_at();
        let writer = self.log.writer();
        let first = writer.position().first_seq;
        let room = writer.room(hold);
        self.check_held(first, hold);
        let writer = self.log.writer();
        let room = match room {
            Room::Bytes(room) => room,
            Room::Full(cause) => {
                assert_eq!(cause, Cause::Retention);
                assert!(hold != Hold::Nothing);
                return;
            }
        };
        let bytes: Vec<u8> = (0..len.min(room)).map(|at| (at * 7 + len) as u8).collect();
        let stream_of = STREAMS[usize::from(stream)];
        if append(writer, stream_of, at_ms, &bytes).is_some() {
            self.log.pushed(stream_of, at_ms, &bytes);
            self.produced[usize::from(stream)] += bytes.len() as u64;
        }
    }

    /// Asserts that no held event was evicted since the log began at `first`.
    fn check_held(&mut self, first: Seq, hold: Hold) {
        if let Hold::After(Point { seq, .. }) = hold {
            assert!(self.log.writer().position().first_seq <= (seq + 1).max(first), "held events stay");
        }
    }

    fn reopen(&mut self) {
        // A run of dropped output that is not written does not survive reopening.
        if !matches!(self.log.writer().room(Hold::Nothing), Room::Bytes(_)) {
            return;
        }
        drop(self.log.writer.take());
        let (writer, recovered) = Writer::open(self.log.path(), self.options, Arc::new(Unlimited)).unwrap();
        self.log.writer = Some(writer);
        let summary = recovered.summary;
        assert_eq!((summary.next_seq, summary.offset), (self.log.last() + 1, self.log.offset));
        assert_eq!((summary.is_exact, recovered.cut_bytes), (true, 0));
        assert_eq!(summary.notes, self.notes);
        assert_eq!(summary.exited.is_some(), self.has_exited);
        assert_eq!(crate::inspect(self.log.path()).unwrap().produced, summary.produced);
    }

    fn read(&mut self, index: usize, most: usize) {
        let up_to = self.log.writer().position().written_seq;
        let first = self.log.writer().position().first_seq;
        for _ in 0..most {
            let (reader, cursor) = &mut self.readers[index];
            let (before, offset) = (cursor.seq, cursor.offset);
            let Some(event) = reader.next(cursor, up_to).unwrap().map(Event::of) else {
                assert!(before >= up_to);
                return;
            };
            let (from, to, bytes) = event.extent();
            assert_eq!((from, cursor.seq), (before + 1, to));
            let true_events = &self.log.events[from as usize - 1..to as usize];
            if true_events != [event.clone()] {
                let Event::Gap(gap) = event else { panic!("{event:?} is not {true_events:?}") };
                assert_eq!((gap.cause, to + 1), (GapCause::Evicted, first));
                let true_bytes = true_events.iter().map(|event| event.extent().2.unwrap()).sum();
                assert_eq!(bytes, offset.map(|_| true_bytes));
            }
            assert_eq!(self.readers[index].1.offset, Some(self.offset_after(to)));
        }
    }

    fn check_sums(&mut self) {
        let position = self.log.writer().position();
        let produced = position.produced;
        assert_eq!([produced.stdout, produced.stderr, produced.pty], self.produced);
        assert_eq!((position.dropped, position.offset), (self.dropped, produced.total()));
        assert_eq!(produced.total(), position.retained + position.evicted + position.dropped);
        assert_eq!(position.next_seq, self.log.last() + 1);
        let retained: u64 = self.log.events[position.first_seq as usize - 1..]
            .iter()
            .filter(|event| matches!(event, Event::Output { .. }))
            .map(|event| event.extent().2.unwrap())
            .sum();
        assert_eq!(position.retained, retained);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_log_returns_what_was_appended(
        retain_bytes in prop_oneof![100..5000_u64, 5000..200_000_u64],
        segment_bytes in prop_oneof![Just(None), (300..3000_u64).prop_map(Some), (3000..50_000_u64).prop_map(Some)],
        operations in vec(operation(), 0..120),
    ) {
        let mut model = Model::new(Options { retain_bytes, segment_bytes });
        for operation in &operations {
            model.apply(operation);
        }
        model.reopen();
        for index in 0..model.readers.len() {
            model.read(index, usize::MAX);
        }
    }
}
