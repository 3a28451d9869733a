//! Server-sent events at an address, as a sink. [`crate::sink`] serves them.

use std::sync::Arc;

use super::security::{TLS_FIELDS, TLS_LISTENING_FIELDS, tls_server};
use super::wire::has_port;
use super::{RequestError, SinkConfig, SinkTarget, System, SystemSection, report_sink};
use crate::control::Control;
use crate::document::definition::{FieldDefinition, FieldType};
use crate::http::HttpEndpoint;
use crate::security::TlsAcceptor;

pub(super) const SYSTEM: System = System {
    schemes: SCHEMES,
    path: "http-listen://address:port",
    sink: Some(sink),
    sink_fields: &[FieldDefinition::optional(
        "served_as",
        FieldType::Texts,
        "requests for addresses, `localhost` and the host in `path` are answered",
        "\"stats.example.org\"",
        "More host names that requests may have, such as those that a proxy or a cluster service passes on.",
    )],
    security: &[(TLS_FIELDS, SCHEMES), (TLS_LISTENING_FIELDS, SCHEMES)],
    ..System::NONE
};

const SCHEMES: &[&str] = &["http-listen"];

fn sink(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SinkConfig>> {
    let tls = tls_server(settings);
    let names = settings.section.get("served_as").and_then(|names| names.texts()).unwrap_or_default();
    let names =
        names.into_iter().map(|name| name.map(|name| HttpEndpoint::host_name(name).map_err(Into::into)));
    let names: Option<Vec<_>> = names.map(|name| Some(name?.value)).collect();
    if !has_port(settings.rest) {
        report_sink(settings.path);
        return None;
    }
    Some(Arc::new(HttpEndpoint::at(settings.rest).with_tls(tls).named(names?)))
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

    fn probe(&self, _control: &Control) -> Result<(), RequestError> {
        // The address is not tried: a run may be serving events there.
        Ok(self.tls.as_ref().map(TlsAcceptor::new).transpose().map(drop)?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::sink_of;

    #[test]
    fn events_are_served_under_the_names_of_hosts() {
        let sink = |names: &str| sink_of(&format!("path = 'http-listen://0.0.0.0:80', served_as = {names}"));
        assert!(sink("'stats.example.org'").is_ok() && sink("['run', 'stats.example.org']").is_ok());
        for wrong in ["'https://stats.example.org'", "['run', 'run:8080']", "''", "1"] {
            let error = sink(wrong).unwrap_err();
            assert!(error.contains("served_as") && error.contains("expected"), "{error}");
        }
    }
}
