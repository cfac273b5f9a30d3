//! Sends batches of spans from the thread of the exporter.

use std::{
    env, fmt, mem,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use opentelemetry::trace::{SpanKind, Status};
use opentelemetry_otlp::{OTEL_EXPORTER_OTLP_TIMEOUT, OTEL_EXPORTER_OTLP_TRACES_TIMEOUT};
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    trace::{SpanData, SpanExporter},
};
use reqwest::{Client, redirect::Policy};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use tokio::runtime::{Builder, Runtime};

use crate::CreateError;

/// How long one batch may take, unless a variable says otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often a collector that does not work is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(600);

/// Gives spans their final form and sends them.
pub(super) struct Sender<E> {
    exporter: E,
    /// A runtime of its own, so that the exporter and the server do not wait for each other's tasks.
    runtime: Runtime,
    timeout: Duration,
    /// Used by one thread at a time.
    reports: Mutex<Reports>,
}

impl<E> fmt::Debug for Sender<E> {
    /// Leaves out the exporter, whose headers may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl<E> Sender<E> {
    pub(super) fn new(exporter: E) -> Result<Self, CreateError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        Ok(Sender {
            exporter,
            runtime: runtime.map_err(|error| CreateError::Client(error.to_string()))?,
            timeout: timeout(),
            reports: Mutex::default(),
        })
    }
}

impl<E: SpanExporter> SpanExporter for Sender<E> {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        batch.iter_mut().for_each(finish);
        let spans = batch.len();
        // Nothing else runs on this thread.
        let sent = self.runtime.block_on(async {
            let sent = tokio::time::timeout(self.timeout, self.exporter.export(batch)).await;
            sent.unwrap_or(Err(OTelSdkError::Timeout(self.timeout)))
        });
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        match (&sent, reports.on_result(sent.is_ok(), Instant::now())) {
            (Err(error), Report::Failure) => {
                tracing::warn!(%error, spans, "cannot send traces to the collector; they are dropped");
            }
            (Ok(()), Report::Recovery) => tracing::warn!("traces can be sent to the collector again"),
            _ => {}
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// When failures are reported: at once, and then from time to time.
#[derive(Debug, Default)]
struct Reports {
    failing: bool,
    last: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum Report {
    Nothing,
    Failure,
    /// The first success after a reported failure.
    Recovery,
}

impl Reports {
    fn on_result(&mut self, is_ok: bool, now: Instant) -> Report {
        if is_ok {
            return if mem::take(&mut self.failing) { Report::Recovery } else { Report::Nothing };
        }
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < REPORT_INTERVAL) {
            return Report::Nothing;
        }
        (self.failing, self.last) = (true, Some(now));
        Report::Failure
    }
}

/// Gives a span the name, kind and status that collectors expect.
fn finish(span: &mut SpanData) {
    let value = |span: &SpanData, name: &str| {
        let attribute = span.attributes.iter().find(|attribute| attribute.key.as_str() == name);
        attribute.map(|attribute| attribute.value.to_string())
    };
    if let Some(method) = value(span, "method") {
        span.name = method.into();
        span.span_kind = SpanKind::Server;
    }
    let error = value(span, "outcome").filter(|outcome| outcome != "ok").or_else(|| value(span, "error"));
    if let Some(error) = error {
        span.status = Status::error(error);
    }
    // The span has them already.
    span.attributes.retain(|attribute| !matches!(attribute.key.as_str(), "trace_id" | "parent_id"));
}

/// Returns an HTTP client with the proxies and root certificates of the host.
pub(super) fn client() -> Result<Client, CreateError> {
    let failed = |error: &dyn fmt::Display| CreateError::Client(error.to_string());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    // A redirect must not choose who gets the headers.
    let builder =
        Client::builder().tls_backend_preconfigured(tls).redirect(Policy::none()).timeout(timeout());
    builder.build().map_err(|error| failed(&error))
}

fn timeout() -> Duration {
    let variables = [OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, OTEL_EXPORTER_OTLP_TIMEOUT];
    let ms = variables.iter().find_map(|name| env::var(name).ok()?.parse().ok());
    ms.map_or(TIMEOUT, Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_collector_is_reported_at_intervals() {
        let (mut reports, begin) = (Reports::default(), Instant::now());
        let minutes = |minutes: u64| begin + Duration::from_secs(60 * minutes);
        assert_eq!(reports.on_result(true, minutes(0)), Report::Nothing);
        assert_eq!(reports.on_result(false, minutes(0)), Report::Failure);
        assert_eq!(reports.on_result(false, minutes(1)), Report::Nothing);
        assert_eq!(reports.on_result(true, minutes(2)), Report::Recovery);
        assert_eq!(reports.on_result(true, minutes(3)), Report::Nothing);
        assert_eq!(reports.on_result(false, minutes(4)), Report::Nothing);
        assert_eq!(reports.on_result(false, minutes(11)), Report::Failure);
    }
}
