//! Sends the spans of a server to an OpenTelemetry collector, as protobuf over HTTP (OTLP).
//!
//! A thread of its own sends them in batches: requests never wait for it, and spans that it cannot send in time are
//! dropped. The program is configured by the variables that the OpenTelemetry specification names.
//! Start at [`Exporter::from_env`].

mod sender;

use std::{env, str::FromStr as _, time::Duration};

use opentelemetry::{
    Context, KeyValue,
    trace::{
        SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState, TracerProvider as _,
    },
};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use remex_proto::TraceContext;
use tracing::{Span, Subscriber, level_filters::LevelFilter};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{Layer, filter::FilterFn, registry::LookupSpan};

use sender::Sender;

/// The name of the service, unless a variable names it.
const SERVICE: &str = "remex";

/// How long the shutdown of the program waits until the last spans are sent.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// Variables that name a collector.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// Sends spans until it is shut down.
#[derive(Debug)]
pub struct Exporter {
    provider: SdkTracerProvider,
}

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// A variable is not valid.
    #[error("cannot export traces: {0}")]
    Settings(#[from] ExporterBuildError),
    /// The protocol is not supported.
    #[error("cannot export traces: the protocol `{0}` is not supported")]
    Protocol(String),
    /// The HTTP client cannot be created.
    #[error("cannot export traces: cannot create an HTTP client: {0}")]
    Client(String),
}

impl CreateError {
    /// Returns what to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            CreateError::Settings(_) => "check the variables OTEL_EXPORTER_OTLP_*",
            CreateError::Protocol(_) => "set OTEL_EXPORTER_OTLP_PROTOCOL to `http/protobuf`",
            CreateError::Client(_) => "raise the limits of the server for threads and open files",
        }
    }
}

impl Exporter {
    /// Creates an exporter if a variable names a collector and none turns exporting off.
    ///
    /// # Errors
    ///
    /// If a variable is not valid.
    pub fn from_env() -> Result<Option<Self>, CreateError> {
        let is_set = |name: &&str| env::var_os(name).is_some_and(|value| !value.is_empty());
        let is = |name, value: &str| env::var(name).is_ok_and(|set| set.eq_ignore_ascii_case(value));
        if !ENDPOINTS.iter().any(is_set) {
            return Ok(None);
        }
        if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
            return Ok(None);
        }
        let protocols = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
        let protocol = protocols.iter().find(|name| is_set(name)).and_then(|name| env::var(name).ok());
        if let Some(protocol) = protocol.filter(|protocol| protocol != "http/protobuf") {
            return Err(CreateError::Protocol(protocol));
        }
        Self::create(None).map(Some)
    }

    /// Creates an exporter for the collector at this URL, which usually ends in `/v1/traces`.
    ///
    /// # Errors
    ///
    /// If the URL is not valid.
    pub fn to(url: &str) -> Result<Self, CreateError> {
        Self::create(Some(url))
    }

    fn create(url: Option<&str>) -> Result<Self, CreateError> {
        let mut builder = SpanExporter::builder().with_http().with_http_client(sender::client()?);
        if let Some(url) = url {
            builder = builder.with_endpoint(url);
        }
        let sender = Sender::new(builder.build()?)?;
        let provider =
            SdkTracerProvider::builder().with_resource(resource()).with_batch_exporter(sender).build();
        Ok(Exporter { provider })
    }

    /// Returns the part of a subscriber that receives the spans of our crates.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let ours = FilterFn::new(|span| span.is_span() && span.target().starts_with("remex"))
            .with_max_level_hint(LevelFilter::DEBUG);
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(SERVICE))
            .with_context_activation(false)
            .with_location(false)
            .with_level(false)
            .with_target(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(ours)
    }

    /// Sends the last spans, within a few seconds.
    pub fn shut_down(self) {
        if let Err(error) = self.provider.shutdown_with_timeout(LAST_SPANS) {
            tracing::warn!(%error, "cannot send the last traces");
        }
    }
}

/// Makes a span the child of a span of a client.
pub fn set_parent(span: &Span, context: &TraceContext) {
    let state = context.state().and_then(|state| TraceState::from_str(state).ok());
    let remote = SpanContext::new(
        TraceId::from_bytes(context.trace_id().to_be_bytes()),
        SpanId::from_bytes(context.parent_id().to_be_bytes()),
        if context.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::default() },
        true,
        state.unwrap_or_default(),
    );
    // It fails if nothing exports the span.
    let _ = span.set_parent(Context::new().with_remote_span_context(remote));
}

/// Describes this program, unless variables do.
fn resource() -> Resource {
    let attributes = env::var("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let is_named = attributes.split(',').any(|pair| pair.trim().starts_with("service.name="));
    let builder =
        Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    match env::var_os("OTEL_SERVICE_NAME") {
        Some(name) if !name.is_empty() => builder.build(),
        _ if is_named => builder.build(),
        _ => builder.with_service_name(SERVICE).build(),
    }
}
