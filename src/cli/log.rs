//! `--log`: what a run does, on standard error, line by line. No line holds data, sums or noise.

use std::io::stderr;

use clap::{Args, ValueEnum};
use tracing::level_filters::LevelFilter;

/// Whether and how a run tells what it does.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct LogArguments {
    /// Tell on standard error what the run does: where it goes on, when it ends and why; debug tells of every commit as well
    #[arg(long, value_enum, value_name = "LEVEL")]
    log: Option<Level>,
    /// How to tell it
    #[arg(long, value_enum, default_value_t = LogFormat::Text, requires = "log", value_name = "FORMAT")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    Info,
    Debug,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// A line for people
    Text,
    /// A JSON object a line
    Json,
}

impl LogArguments {
    /// From here on what happens is told.
    pub(super) fn begin(self) {
        let level = match self.log {
            None => return,
            Some(Level::Info) => LevelFilter::INFO,
            Some(Level::Debug) => LevelFilter::DEBUG,
        };
        let log = tracing_subscriber::fmt().with_max_level(level).with_writer(stderr).with_ansi(false);
        match self.log_format {
            LogFormat::Text => log.init(),
            LogFormat::Json => log.json().flatten_event(true).init(),
        }
    }
}
