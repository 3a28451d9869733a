//! Server-sent events at an address, as a sink. [`crate::sink`] serves them.

use std::sync::Arc;

use super::security::{TLS_FIELDS, TLS_LISTENING_FIELDS, tls_server};
use super::wire::has_port;
use super::{SinkConfig, SinkTarget, System, SystemSection, report_sink};
use crate::control::Control;
use crate::http::HttpEndpoint;

pub(super) const SYSTEM: System = System {
    schemes: SCHEMES,
    path: "http-listen://address:port",
    sink: Some(sink),
    security: &[(TLS_FIELDS, SCHEMES), (TLS_LISTENING_FIELDS, SCHEMES)],
    ..System::NONE
};

const SCHEMES: &[&str] = &["http-listen"];

fn sink(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SinkConfig>> {
    let tls = tls_server(settings);
    if !has_port(settings.rest) {
        report_sink(settings.path);
        return None;
    }
    Some(Arc::new(HttpEndpoint::at(settings.rest).with_tls(tls)))
}

impl SinkConfig for HttpEndpoint {
    fn name(&self) -> String {
        format!("http-listen://{}", self.address)
    }

    fn destination(&self) -> Option<String> {
        // Port 0 selects a new port each time.
        Some(self.name()).filter(|name| !name.ends_with(":0"))
    }

    fn target(&self, _control: &Control) -> SinkTarget {
        SinkTarget::Events(self.clone())
    }
}
