//! `--log`: diagnostics of a run on standard error. No line holds data, sums or noise.

use std::io::stderr;

use clap::{Args, ValueEnum};
use tracing::level_filters::LevelFilter;

/// Arguments that select level and format of the diagnostics.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct LogArguments {
    /// Log on standard error where the run continues, when it ends and why; debug also logs every
    /// commit
    #[arg(long, value_enum, value_name = "LEVEL")]
    log: Option<LogLevel>,
    /// Format of the log
    #[arg(long, value_enum, default_value_t = LogFormat::Text, requires = "log", value_name = "FORMAT")]
    log_format: LogFormat,
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
    /// Installs the logger.
    pub(super) fn begin(self) {
        let level = match self.log {
            None => return,
            Some(LogLevel::Info) => LevelFilter::INFO,
            Some(LogLevel::Debug) => LevelFilter::DEBUG,
        };
        let log = tracing_subscriber::fmt().with_max_level(level).with_writer(stderr).with_ansi(false);
        match self.log_format {
            LogFormat::Text => log.init(),
            LogFormat::Json => log.json().flatten_event(true).init(),
        }
    }
}
