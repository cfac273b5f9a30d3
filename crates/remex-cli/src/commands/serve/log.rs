//! The log on stderr, and the export of spans in builds with the feature `otlp`.
//!
//! Start at [`start`].

use std::io;

use remex_server::SetParent;
use tracing_subscriber::EnvFilter;

use super::reload::SetLog;
use crate::{args::serve::FILTER_HINT, render::failure::Failure};

#[cfg(feature = "otlp")]
type Exporter = remex_otlp::Exporter;

/// Builds without the feature export nothing.
#[cfg(not(feature = "otlp"))]
enum Exporter {}

/// The running log.
pub(super) struct Log {
    /// Changes the filter.
    pub(super) set_filter: SetLog,
    pub(super) spans: Spans,
}

/// Where spans go besides the log.
pub(super) struct Spans {
    exporter: Option<Exporter>,
}

/// Starts the log; must be called before other threads and the runtime exist.
pub(super) fn start(text: &str) -> Result<Log, Failure> {
    let filter = filter(text)?;
    #[cfg(feature = "otlp")]
    {
        let exporter = Exporter::from_env();
        if let Some(exporter) = exporter.map_err(|error| Failure::new(error.to_string(), error.hint()))? {
            return Ok(Log {
                set_filter: exporting(filter, &exporter),
                spans: Spans { exporter: Some(exporter) },
            });
        }
    }
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_filter_reloading();
    let handle = log.reload_handle();
    log.init();
    #[cfg(not(feature = "otlp"))]
    if std::env::var_os("OTEL_EXPORTER_OTLP_ENDPOINT").is_some() {
        tracing::info!("traces are not exported: this program was built without the feature `otlp`");
    }
    // It fails only if the log is gone.
    Ok(Log { set_filter: Box::new(move |filter| _ = handle.reload(filter)), spans: Spans { exporter: None } })
}

/// Starts a log whose filter does not apply to exported spans; returns a function that changes it.
#[cfg(feature = "otlp")]
fn exporting(filter: EnvFilter, exporter: &Exporter) -> SetLog {
    use tracing_subscriber::{Layer as _, layer::SubscriberExt as _, reload, util::SubscriberInitExt as _};

    let (filter, handle) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false).with_filter(filter);
    tracing_subscriber::registry().with(lines).with(exporter.layer()).init();
    Box::new(move |filter| _ = handle.reload(filter))
}

pub(super) fn filter(text: &str) -> Result<EnvFilter, Failure> {
    EnvFilter::try_new(text).map_err(|error| {
        // Flag and variable were checked when they were parsed.
        Failure::usage(format!("cannot use `{text}` for `log` in the configuration file"), FILTER_HINT)
            .because(error.to_string())
    })
}

#[cfg(feature = "otlp")]
impl Spans {
    /// Returns what connects spans with the traces of clients.
    pub(super) fn set_parent(&self) -> Option<SetParent> {
        self.exporter.as_ref().map(|_| remex_otlp::set_parent as SetParent)
    }

    /// Sends the last spans; must not be called within the runtime.
    pub(super) fn shut_down(self) {
        if let Some(exporter) = self.exporter {
            exporter.shut_down();
        }
    }
}

#[cfg(not(feature = "otlp"))]
impl Spans {
    pub(super) fn set_parent(&self) -> Option<SetParent> {
        self.exporter.as_ref().map(|exporter| match *exporter {})
    }

    pub(super) fn shut_down(self) {}
}
