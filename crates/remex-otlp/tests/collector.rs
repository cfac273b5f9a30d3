//! What a collector receives about the requests of a client, and what happens without one.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::any_value::Value,
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use prost::Message as _;
use remex::Local;
use remex_client::{Client, Command, TraceContext, with_trace};
use remex_otlp::{Exporter, set_parent};
use tracing::subscriber::{set_global_default, with_default};
use tracing_subscriber::{layer::SubscriberExt as _, registry};

const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
const PARENT: u64 = 0x00f0_67aa_0ba9_02b7;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// An HTTP server that accepts spans.
struct Collector {
    url: String,
    requests: Receiver<ExportTraceServiceRequest>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let (sender, requests) = channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let sender = sender.clone();
                thread::spawn(move || serve(stream.unwrap(), &sender));
            }
        });
        Self { url, requests }
    }

    /// Waits for a span that meets the condition; returns it and all others that came before.
    fn wait(&self, what: &str, is_met: impl Fn(&[Span]) -> bool) -> Vec<Span> {
        let (mut spans, end) = (Vec::new(), Instant::now() + PATIENCE);
        while !is_met(&spans) {
            let left = end.saturating_duration_since(Instant::now());
            let request =
                self.requests.recv_timeout(left).unwrap_or_else(|_| panic!("no {what} among {spans:#?}"));
            for resource in request.resource_spans {
                let attributes = resource.resource.unwrap().attributes;
                assert!(attributes.iter().any(|attribute| attribute.key == "service.name"));
                spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        }
        spans
    }
}

fn serve(stream: TcpStream, sender: &Sender<ExportTraceServiceRequest>) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line).unwrap() > 0 && !line.trim().is_empty() {
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        if line.is_empty() {
            return;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        let _ = sender.send(ExportTraceServiceRequest::decode(&body[..]).unwrap());
    }
}

fn attribute(span: &Span, name: &str) -> Option<String> {
    let attribute = span.attributes.iter().find(|attribute| attribute.key == name)?;
    match attribute.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("`{name}` is {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_and_processes_arrive_with_the_trace_of_the_client() {
    let collector = Collector::start();
    let exporter = Exporter::to(&collector.url).unwrap();
    set_global_default(registry().with(exporter.layer())).unwrap();
    let config = remex_server_config();
    let client = Client::connect(Local::new(config).unwrap().target()).await.unwrap();
    let parent = format!("00-{TRACE:032x}-{PARENT:016x}-01");
    let trace = TraceContext::parse(&parent, Some("vendor=1")).unwrap();
    let output = with_trace(trace.clone(), Command::shell("exit 3").output(&client)).await.unwrap();
    assert_eq!(output.exit.code, 3);
    with_trace(trace, client.fs().metadata("/no/such/file")).await.unwrap_err();
    let unsampled = TraceContext::parse(&format!("00-{TRACE:032x}-{PARENT:016x}-00"), None).unwrap();
    with_trace(unsampled, client.fs().metadata("/")).await.unwrap();
    client.info().await.unwrap();
    client.end().await.unwrap();
    // The end of a program does the same, outside of its runtime.
    tokio::task::spawn_blocking(|| exporter.shut_down()).await.unwrap();

    let names = ["process/start", "process", "fs/getMetadata", "session/end"];
    let spans = collector.wait("span of each kind", |spans| {
        names.iter().all(|name| spans.iter().any(|span| span.name == *name))
    });
    let all = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();

    let [start] = all("process/start")[..] else { panic!("one start: {spans:#?}") };
    assert_eq!(start.trace_id, TRACE.to_be_bytes());
    assert_eq!(start.parent_span_id, PARENT.to_be_bytes());
    assert_eq!(start.trace_state, "vendor=1");
    assert_eq!(start.kind(), SpanKind::Server);
    assert_eq!(attribute(start, "outcome").as_deref(), Some("ok"));
    assert_eq!(attribute(start, "identity").unwrap(), "program");
    assert_eq!(attribute(start, "trace_id"), None);

    let [process] = all("process")[..] else { panic!("one process: {spans:#?}") };
    assert_eq!(process.trace_id, TRACE.to_be_bytes());
    assert_eq!(process.parent_span_id, PARENT.to_be_bytes());
    let [link] = &process.links[..] else { panic!("a link to the start: {process:#?}") };
    assert_eq!((&link.trace_id, &link.span_id), (&start.trace_id, &start.span_id));
    assert_eq!(attribute(process, "code").as_deref(), Some("3"));
    assert_eq!(attribute(process, "process"), attribute(start, "process"));
    assert!(attribute(process, "pid").is_some());

    let [metadata] = all("fs/getMetadata")[..] else { panic!("the unsampled one is left out: {spans:#?}") };
    assert_eq!(metadata.trace_id, TRACE.to_be_bytes());
    assert_eq!(metadata.status.as_ref().unwrap().code(), StatusCode::Error);

    // A request without a trace begins one.
    let [end] = all("session/end")[..] else { panic!("one end: {spans:#?}") };
    assert_ne!(end.trace_id, TRACE.to_be_bytes());
    assert!(end.parent_span_id.is_empty(), "{end:#?}");
}

fn remex_server_config() -> remex_server::Config {
    remex_server::Config { set_parent: Some(set_parent), ..remex::config_from_env() }
}

#[test]
fn without_a_collector_spans_are_dropped_and_nothing_waits() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let exporter = Exporter::to(&format!("http://127.0.0.1:{port}/v1/traces")).unwrap();
    let begin = Instant::now();
    with_default(registry().with(exporter.layer()), || {
        // Many more than the exporter keeps.
        for number in 0..20_000 {
            tracing::debug_span!(target: "remex", "request", number).in_scope(|| {});
        }
    });
    exporter.shut_down();
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
}

#[test]
fn an_unresponsive_collector_delays_the_shutdown_by_a_few_seconds_only() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let exporter = Exporter::to(&format!("http://{}/v1/traces", listener.local_addr().unwrap())).unwrap();
    with_default(registry().with(exporter.layer()), || {
        tracing::debug_span!(target: "remex", "request").in_scope(|| {});
    });
    let begin = Instant::now();
    exporter.shut_down();
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
}

#[test]
fn an_invalid_url_is_refused() {
    let error = Exporter::to("no url at all").unwrap_err();
    assert!(error.to_string().starts_with("cannot export traces: "), "{error}");
}
