//! The outbox with fake sources.

use std::collections::BTreeMap;

use remex_proto::{call::Empty, process};
use remex_rpc::{Framing, memory::ToClient};
use tokio::sync::mpsc;

use super::*;

/// Bytes in one event of a [`Fake`].
const EVENT_BYTES: usize = 16 << 10;

/// A source with a number of events, which records the calls it receives.
#[derive(Debug)]
struct Fake {
    name: &'static str,
    state: Mutex<FakeState>,
}

#[derive(Debug, Default)]
struct FakeState {
    sent: Seq,
    events: Seq,
    acknowledged: Seq,
    opened: usize,
    answered: Seq,
    asks_at_once: bool,
}

impl Fake {
    fn new(name: &'static str, events: Seq) -> Arc<Self> {
        Arc::new(Fake { name, state: Mutex::new(FakeState { events, ..FakeState::default() }) })
    }

    fn state(&self) -> MutexGuard<'_, FakeState> {
        lock(&self.state)
    }
}

impl Source for Fake {
    fn open(self: Arc<Self>, _outbox: &Outbox) {
        self.state().opened += 1;
    }

    fn deliver(self: Arc<Self>, _to: ConnectionId, sink: &mut Sink, quota: usize) -> Delivery {
        let mut state = self.state();
        let mut delivery = Delivery { wants_mark: state.asks_at_once, ..Delivery::default() };
        while state.sent < state.events && delivery.sent_bytes < quota {
            state.sent += 1;
            let output = process::Output {
                process_id: self.name.to_owned(),
                session_id: None,
                incarnation: None,
                seq: state.sent,
                stream: process::Stream::Stdout,
                chunk: Bytes::from_static(&[0; EVENT_BYTES]).into(),
            };
            sink.note(EVENT_BYTES, output);
            delivery.bytes += EVENT_BYTES;
            delivery.sent_bytes += EVENT_BYTES;
        }
        delivery.up_to = (delivery.bytes > 0).then_some(state.sent);
        delivery.more = (state.sent < state.events).then_some(Urgency::Bulk);
        delivery
    }

    fn acknowledge(self: Arc<Self>, _connection: ConnectionId, seq: Seq) {
        let mut state = self.state();
        state.acknowledged = state.acknowledged.max(seq);
    }

    fn on_answered(&self, _connection: ConnectionId, seq: Seq, _extent: Option<ReadExtent>) {
        self.state().answered = seq;
    }

    fn cancel_input(&self, _is_cancelled: &dyn Fn(&Responder) -> bool) -> bool {
        false
    }
}

/// One message as a client sees it.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    Event(String),
    Mark(u64),
    Answer(RequestId),
}

/// An outbox whose client acknowledges marks, or does not.
struct Wire {
    outbox: Arc<Outbox>,
    sink: Sink,
    /// Keeps the channel open.
    _client: mpsc::Receiver<ToClient>,
}

impl Wire {
    fn new() -> Self {
        let (sender, client) = mpsc::channel(1);
        let limits = Limits::default();
        let outbox = Outbox::new(1, Acks::Mark, Encoding::Value, limits, Shared::default());
        Wire { outbox: Arc::new(outbox), sink: Sink::memory(sender), _client: client }
    }

    /// Fills the send buffer once and sends it.
    fn step(&mut self) -> Vec<Sent> {
        assert_eq!(self.outbox.fill(&mut self.sink), None);
        let Sink::Memory { values, .. } = &mut self.sink else { unreachable!("the sink is in memory") };
        let mut sent = Vec::new();
        while let Some(value) = values.pop() {
            sent.push(match value {
                ToClient::Note(ServerNote::ProcessOutput(output)) => Sent::Event(output.process_id),
                ToClient::Note(ServerNote::FlowMark(mark)) => Sent::Mark(mark.mark),
                ToClient::Answer { id, .. } => Sent::Answer(id),
                other => panic!("unexpected {other:?}"),
            });
        }
        sent
    }

    /// Sends until nothing more may be sent without an acknowledgement.
    fn drain(&mut self) -> Vec<Sent> {
        let mut all = Vec::new();
        loop {
            let sent = self.step();
            if sent.is_empty() {
                return all;
            }
            all.extend(sent);
        }
    }

    fn acknowledge_all(&self, sent: &[Sent]) {
        let newest = sent.iter().filter_map(|sent| match sent {
            Sent::Mark(mark) => Some(*mark),
            Sent::Event(_) | Sent::Answer(_) => None,
        });
        newest.max().into_iter().for_each(|mark| self.outbox.acknowledged(mark));
    }

    fn ready(&self, source: &Arc<Fake>, urgency: Urgency) {
        self.outbox.ready(Arc::clone(source) as _, urgency);
    }

    fn request(&self, id: i64) -> Responder {
        Responder::new(&self.outbox, request_id(id), 0)
    }
}

fn request_id(id: i64) -> RequestId {
    serde_json::from_value(id.into()).unwrap()
}

fn events_of(sent: &[Sent]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for sent in sent {
        if let Sent::Event(name) = sent {
            *counts.entry(name.as_str()).or_default() += 1;
        }
    }
    counts
}

#[test]
fn floods_share_a_connection_evenly() {
    let mut wire = Wire::new();
    let floods = ["a", "b", "c"].map(|name| Fake::new(name, Seq::MAX));
    floods.iter().for_each(|flood| wire.ready(flood, Urgency::Bulk));
    let mut all = Vec::new();
    while all.len() < 3000 {
        let sent = wire.step();
        wire.acknowledge_all(&sent);
        all.extend(sent);
    }
    let counts = events_of(&all);
    let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
    assert_eq!(counts.len(), 3);
    assert!(most - least <= 4, "a turn has four events: {counts:?}");
}

#[test]
fn answers_and_short_output_go_before_a_flood() {
    let mut wire = Wire::new();
    let (flood, short) = (Fake::new("flood", Seq::MAX), Fake::new("short", 1));
    wire.ready(&flood, Urgency::Bulk);
    wire.ready(&short, Urgency::Fresh);
    wire.request(7).ok(Empty {});
    let sent = wire.step();
    assert_eq!(sent[..2], [Sent::Answer(request_id(7)), Sent::Event("short".to_owned())]);
    assert!(matches!(&sent[2], Sent::Event(name) if name == "flood"), "{sent:?}");
}

#[test]
fn short_output_is_not_held_up_by_a_flood_that_has_used_up_the_window() {
    let mut wire = Wire::new();
    let (flood, short) = (Fake::new("flood", Seq::MAX), Fake::new("short", 1));
    wire.ready(&flood, Urgency::Bulk);
    wire.drain();
    wire.ready(&short, Urgency::Fresh);
    wire.request(7).ok(Empty {});
    let sent = wire.drain();
    assert_eq!(sent[..2], [Sent::Answer(request_id(7)), Sent::Event("short".to_owned())]);
    assert!(!events_of(&sent).contains_key("flood"), "{sent:?}");
}

#[test]
fn a_flood_stops_at_the_window_and_continues_once_acknowledged() {
    let mut wire = Wire::new();
    let flood = Fake::new("flood", Seq::MAX);
    wire.ready(&flood, Urgency::Bulk);
    let first = wire.drain();
    let events = events_of(&first)["flood"] as Seq;
    assert!((16..=64).contains(&events), "{events} events of 16 KiB without an acknowledgement");
    wire.outbox.acknowledged(u64::MAX);
    assert_eq!(wire.drain(), [], "a mark that was never set acknowledges nothing");
    wire.acknowledge_all(&first);
    assert_eq!(flood.state().acknowledged, events);
    assert!(!wire.drain().is_empty());
}

#[test]
fn a_mark_acknowledges_only_what_was_sent_before_it() {
    let mut wire = Wire::new();
    let (first, second) = (Fake::new("first", 3), Fake::new("second", 4));
    for source in [&first, &second] {
        source.state().asks_at_once = true;
        wire.ready(source, Urgency::Fresh);
    }
    let sent = wire.drain();
    let marks: Vec<u64> =
        sent.iter().filter_map(|sent| if let Sent::Mark(mark) = sent { Some(*mark) } else { None }).collect();
    assert_eq!(marks.len(), 2, "{sent:?}");
    wire.outbox.acknowledged(marks[0]);
    assert_eq!((first.state().acknowledged, second.state().acknowledged), (3, 0));
    wire.outbox.acknowledged(marks[1]);
    assert_eq!((first.state().acknowledged, second.state().acknowledged), (3, 4));
}

#[test]
fn answers_keep_their_order_and_a_source_opens_after_the_answer_to_its_start() {
    let mut wire = Wire::new();
    let (started, read) = (Fake::new("started", 0), Fake::new("read", 0));
    let requests = [1, 2, 3].map(|id| wire.request(id));
    let [first, second, third] = requests;
    second.ok_then(Empty {}, AfterSend::Follow(Arc::clone(&started) as _));
    let delivered = AfterSend::Delivered {
        source: Arc::clone(&read) as _,
        up_to: 9,
        extent: None,
        acknowledges: 9,
        wants_mark: true,
    };
    third.ok_then(Empty {}, delivered);
    first.ok(Empty {});
    assert_eq!((started.state().opened, read.state().answered), (0, 0), "nothing is on its way yet");
    let sent = wire.drain();
    let answers = [2, 3].map(|id| Sent::Answer(request_id(id)));
    assert_eq!(sent.iter().filter(|sent| matches!(sent, Sent::Answer(_))).count(), 3);
    assert_eq!(
        sent.iter().filter(|sent| answers.contains(sent)).collect::<Vec<_>>(),
        answers.iter().collect::<Vec<_>>()
    );
    assert_eq!(sent.last(), Some(&Sent::Answer(request_id(1))));
    assert_eq!((started.state().opened, read.state().answered), (1, 9));
    wire.acknowledge_all(&sent);
    assert_eq!(read.state().acknowledged, 9);
}

#[test]
fn a_source_dropped_midway_is_forgotten_and_frees_its_window() {
    let mut wire = Wire::new();
    let (gone, kept) = (Fake::new("gone", Seq::MAX), Fake::new("kept", Seq::MAX));
    wire.ready(&gone, Urgency::Bulk);
    let sent = wire.drain();
    wire.outbox.withdraw(&gone);
    assert_eq!(Arc::strong_count(&gone), 1, "nothing keeps it");
    drop(gone);
    wire.ready(&kept, Urgency::Bulk);
    assert_eq!(events_of(&wire.drain()), BTreeMap::new(), "output in flight counts until it is acknowledged");
    wire.acknowledge_all(&sent);
    assert_eq!(events_of(&wire.drain()).keys().copied().collect::<Vec<_>>(), ["kept"]);
}

#[test]
fn a_stalled_long_answer_ends_the_connection_and_a_stalled_stream_does_not() {
    for is_answer in [false, true] {
        let outbox = Outbox::new(1, Acks::Written, Encoding::Json, Limits::default(), Shared::default());
        let mut sink = Sink::wire(Framing::Lines, Box::new(tokio::io::sink()));
        let message = QueuedMessage::Json(vec![b' '; 3 * SEND_BYTES]);
        if is_answer {
            outbox.push(Some(message), AfterSend::Nothing);
        } else {
            outbox.queue().ready.push_part(message, oneshot::channel().0);
        }
        assert_eq!(outbox.fill(&mut sink), None);
        assert!(sink.has_unfinished());
        outbox.progress(1, sink.has_unfinished());
        assert_eq!(outbox.queue().answer_pending_since.is_some(), is_answer);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_a_long_answer_counts_as_alive() {
    let outbox = Outbox::new(1, Acks::Ping, Encoding::Json, Limits::default(), Shared::default());
    for (sent_bytes, is_within_answer, is_expected) in [(1, true, true), (0, true, false), (1, false, false)]
    {
        let taking = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            outbox.progress(sent_bytes, is_within_answer);
        };
        let (is_alive, ()) = tokio::join!(outbox.is_alive(Duration::from_secs(2)), taking);
        assert_eq!(is_alive, is_expected, "{sent_bytes} bytes, within an answer: {is_within_answer}");
    }
}
