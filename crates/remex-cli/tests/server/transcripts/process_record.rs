//! What one process said, put together from notifications and reads, recorded or heard.

use std::collections::{BTreeMap, btree_map::Entry};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

/// The events of one process by seq.
#[derive(Default)]
pub(crate) struct Story {
    events: BTreeMap<u64, Event>,
    /// Recorded paths, and what stands for them here.
    places: Vec<(&'static str, String)>,
}

#[derive(Debug, PartialEq)]
enum Event {
    /// Stream and bytes; `whole` unless the recorder shortened them.
    Output {
        stream: String,
        bytes: Vec<u8>,
        whole: bool,
    },
    Exited {
        code: Value,
    },
    Closed,
}

impl Story {
    /// Begins a recorded story, told as if it had happened here.
    pub(crate) fn moved(places: Vec<(&'static str, String)>) -> Self {
        Self { events: BTreeMap::new(), places }
    }

    /// Adds a notification; one that is known already must say the same again.
    pub(crate) fn add_event(&mut self, message: &Value) {
        let params = &message["params"];
        let event = match message["method"].as_str() {
            Some("process/output") => self.output(params),
            Some("process/exited") => Event::Exited { code: params["exitCode"].clone() },
            Some("process/closed") => Event::Closed,
            _ => panic!("a client of today does not know {message}"),
        };
        self.insert(&params["seq"], event);
    }

    /// Adds the chunks of an answer to `process/read`.
    pub(crate) fn add_read(&mut self, result: &Value) {
        for chunk in result["chunks"].as_array().expect("a read answers with chunks") {
            self.insert(&chunk["seq"], self.output(chunk));
        }
        // The numbers of exit and close are not told, but they are the last ones.
        let next = result["nextSeq"].as_u64().expect("a read answers with the next seq");
        if result["closed"] == true {
            self.insert(&(next - 1).into(), Event::Closed);
        }
        let exited = next - 1 - u64::from(result["closed"] == true);
        if result["exited"] == true && !self.events.contains_key(&exited) && !self.has_exited() {
            self.insert(&exited.into(), Event::Exited { code: result["exitCode"].clone() });
        }
    }

    fn output(&self, params: &Value) -> Event {
        let text = params["chunk"].as_str().unwrap_or_else(|| panic!("output has a chunk: {params}"));
        let stream = params["stream"].as_str().unwrap_or_else(|| panic!("output has a stream: {params}"));
        let (text, whole) = match text.split_once("...(") {
            Some((start, _)) => (&start[..start.len() / 4 * 4], false),
            None => (text, true),
        };
        let bytes = STANDARD.decode(text).unwrap_or_else(|error| panic!("`{text}` is not base64: {error}"));
        let bytes = match String::from_utf8(bytes) {
            Ok(text) => self.places.iter().fold(text, |text, (from, to)| text.replace(from, to)).into_bytes(),
            Err(error) => error.into_bytes(),
        };
        Event::Output { stream: stream.to_owned(), bytes, whole }
    }

    fn insert(&mut self, seq: &Value, event: Event) {
        let seq = seq.as_u64().unwrap_or_else(|| panic!("a seq is a number, not {seq}"));
        match self.events.entry(seq) {
            Entry::Occupied(known) => assert_eq!(*known.get(), event, "seq {seq} is used once"),
            Entry::Vacant(vacant) => {
                vacant.insert(event);
            }
        }
    }

    /// Returns the last seq up to which nothing is missing.
    pub(crate) fn last_seq(&self) -> u64 {
        let missing = (1..).find(|seq| !self.events.contains_key(seq));
        missing.expect("numbers never end") - 1
    }

    pub(crate) fn has_exited(&self) -> bool {
        self.events.values().any(|event| matches!(event, Event::Exited { .. }))
    }

    pub(crate) fn has_closed(&self) -> bool {
        self.events.values().any(|event| *event == Event::Closed)
    }

    /// Returns what was said on each stream, up to where the recorder began to shorten it.
    pub(crate) fn streams(&self) -> BTreeMap<&str, (Vec<u8>, Completeness)> {
        let mut streams = BTreeMap::<&str, (Vec<u8>, Completeness)>::new();
        let mut expected = 1;
        let mut gap = Completeness::Whole;
        for (seq, event) in &self.events {
            if *seq != expected {
                gap = Completeness::Shortened;
            }
            expected = seq + 1;
            if let Event::Output { stream, bytes, whole } = event {
                let (said, completeness) = streams.entry(stream).or_insert((Vec::new(), Completeness::Whole));
                if *completeness == Completeness::Whole && gap == Completeness::Whole {
                    said.extend(bytes);
                    *completeness = if *whole { Completeness::Whole } else { Completeness::Shortened };
                } else {
                    *completeness = Completeness::Shortened;
                }
            }
        }
        streams
    }

    /// Tells whether this story has come as far as `other`.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let mine = self.streams();
        let len = |stream: &str| mine.get(stream).map_or(0, |(bytes, _)| bytes.len());
        other.streams().iter().all(|(stream, (bytes, _))| len(stream) >= bytes.len())
            && (self.has_exited() || !other.has_exited())
            && (self.has_closed() || !other.has_closed())
    }

    /// Compares the whole of what was heard with what was recorded.
    pub(crate) fn assert_tells_the_same_as(&self, recorded: &Self, process: &str) {
        let mine = self.streams();
        for (stream, (bytes, completeness)) in recorded.streams() {
            let said = mine.get(stream).map(|(bytes, _)| &bytes[..]).unwrap_or_default();
            let compared = match completeness {
                Completeness::Whole if recorded.has_closed() => said,
                _ => &said[..bytes.len().min(said.len())],
            };
            assert_eq!(
                String::from_utf8_lossy(compared),
                String::from_utf8_lossy(&bytes),
                "{stream} of process {process}"
            );
        }
        assert!(
            mine.keys().all(|stream| recorded.streams().contains_key(stream)),
            "streams of process {process}"
        );
        if recorded.has_exited() {
            assert_eq!(self.exit_code(), recorded.exit_code(), "process {process}");
        }
        self.assert_ordered(recorded, process);
    }

    fn assert_ordered(&self, recorded: &Self, process: &str) {
        let seqs: Vec<u64> = self.events.keys().copied().collect();
        assert_eq!(seqs, (1..).take(seqs.len()).collect::<Vec<_>>(), "seqs of process {process}");
        let closed = self.events.values().position(|event| *event == Event::Closed);
        assert!(
            closed.is_none_or(|place| place + 1 == self.events.len()),
            "nothing follows the end of {process}"
        );
        // The recorded server sometimes reported an exit before output that came first; never the other way round.
        assert!(
            self.said_before_exit() >= recorded.said_before_exit(),
            "output before the exit of process {process}"
        );
    }

    /// Returns how many bytes came before the exit, where there was one.
    fn said_before_exit(&self) -> usize {
        let before = self.events.values().take_while(|event| !matches!(event, Event::Exited { .. }));
        let len = |event: &Event| match event {
            Event::Output { bytes, .. } => bytes.len(),
            _ => 0,
        };
        if self.has_exited() { before.map(len).sum() } else { 0 }
    }

    fn exit_code(&self) -> Option<&Value> {
        self.events.values().find_map(|event| match event {
            Event::Exited { code } => Some(code),
            _ => None,
        })
    }
}

/// Whether all bytes of a stream were recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Completeness {
    Whole,
    Shortened,
}
