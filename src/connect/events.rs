//! Server-sent events at an address, as a sink. [`crate::sink`] serves them.

use std::sync::Arc;

use super::wire::has_port;
use super::{SinkConfig, SinkTarget, System, SystemSection, report_sink};
use crate::control::Control;

pub(super) const SYSTEM: System = System {
    schemes: &["http-listen"],
    path: "http-listen://address:port",
    sink: Some(sink),
    ..System::NONE
};

/// `path = "http-listen://address:port"`.
#[derive(Debug, PartialEq, Eq)]
struct EventsAddress(String);

fn sink(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SinkConfig>> {
    if !has_port(settings.rest) {
        report_sink(settings.path);
        return None;
    }
    Some(Arc::new(EventsAddress(settings.rest.into())))
}

impl SinkConfig for EventsAddress {
    fn name(&self) -> String {
        format!("http-listen://{}", self.0)
    }

    fn destination(&self) -> Option<String> {
        // Port 0 selects a new port each time.
        Some(self.name()).filter(|name| !name.ends_with(":0"))
    }

    fn target(&self, _control: &Control) -> SinkTarget {
        SinkTarget::Events(self.0.clone())
    }
}
