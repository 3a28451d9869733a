//! Server-sent events at an address, as a sink. [`crate::sink`] serves them.

use std::sync::Arc;

use super::server::has_port;
use super::{Said, System, Target, Writes, report_sink};
use crate::control::Control;

pub(super) const SYSTEM: System = System {
    schemes: &["http-listen"],
    path: "http-listen://address:port",
    sink: Some(sink),
    ..System::NONE
};

/// `path = "http-listen://address:port"`.
#[derive(Debug, PartialEq, Eq)]
struct Address(String);

fn sink(said: &Said<'_, '_>) -> Option<Arc<dyn Writes>> {
    if !has_port(said.rest) {
        report_sink(said.path);
        return None;
    }
    Some(Arc::new(Address(said.rest.into())))
}

impl Writes for Address {
    fn name(&self) -> String {
        format!("http-listen://{}", self.0)
    }

    fn place(&self) -> Option<String> {
        // Port 0 selects a new port each time.
        Some(self.name()).filter(|name| !name.ends_with(":0"))
    }

    fn target(&self, _control: &Control) -> Target {
        Target::Events(self.0.clone())
    }
}
