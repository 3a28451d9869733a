//! The log of a run: lines on standard error, and telemetry to a collector.

use std::io::stderr;

use clap::{Args, ValueEnum};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use super::CliError;
use super::telemetry::{LogLayer, Telemetry};

/// Arguments that select level, format and receivers of the log.
#[derive(Clone, Debug, Args)]
pub(super) struct LogArguments {
    /// Log on standard error where the run continues, when it ends and why; debug also logs every
    /// commit
    #[arg(long, value_enum, value_name = "LEVEL")]
    log: Option<LogLevel>,
    /// Format of the log
    #[arg(long, value_enum, default_value_t = LogFormat::Text, requires = "log", value_name = "FORMAT")]
    log_format: LogFormat,
    /// Send the log and spans to an OpenTelemetry collector by OTLP over HTTP, such as
    /// http://127.0.0.1:4318. A collector that is away neither delays nor ends the run. Needs a
    /// build with the feature otel
    #[arg(long, value_name = "URL")]
    telemetry: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogLevel {
    Info,
    Debug,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object per line
    Json,
}

impl LogArguments {
    /// Installs the receivers of the log. Telemetry is sent until the returned value is dropped.
    pub(super) fn begin(&self) -> Result<Option<Telemetry>, CliError> {
        let level = match self.log {
            Some(LogLevel::Debug) => LevelFilter::DEBUG,
            _ => LevelFilter::INFO,
        };
        let mut layers: Vec<LogLayer> = Vec::new();
        if self.log.is_some() {
            let lines = fmt::layer().with_writer(stderr).with_ansi(false);
            // Spans are for telemetry. Lines have no context of spans.
            let events = filter_fn(|metadata| metadata.is_event());
            layers.push(match self.log_format {
                LogFormat::Text => lines.with_filter(events).boxed(),
                LogFormat::Json => lines.json().flatten_event(true).with_filter(events).boxed(),
            });
        }
        let telemetry = self.telemetry.as_deref().map(Telemetry::start).transpose()?;
        if let Some(telemetry) = &telemetry {
            layers.extend(telemetry.layers());
        }
        if !layers.is_empty() {
            tracing_subscriber::registry().with(layers).with(level).init();
        }
        Ok(telemetry)
    }
}
