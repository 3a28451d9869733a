//! Export of the log and of spans by OTLP over HTTP.
//!
//! Only public facts, times and load are exported: a collector may be on another machine.
//! The reason of a fault can name a private fact, so it has a target of its own,
//! [`PRIVATE_LOG`](crate::control::PRIVATE_LOG), and stays on standard error.
//!
//! Events and spans go into bounded queues and are sent by threads of the SDK. A full queue drops
//! them, so no collector can delay a run. At the end, the rest is sent within two seconds.

use tracing_subscriber::{Layer, Registry};

#[cfg(not(feature = "otel"))]
pub(super) use absent::Telemetry;
#[cfg(feature = "otel")]
pub(super) use otlp::Telemetry;

/// A layer on top of the previous layers.
pub(super) type LogLayer = Box<dyn Layer<Registry> + Send + Sync>;

#[cfg(not(feature = "otel"))]
mod absent {
    use crate::cli::CliError;
    use crate::cli::telemetry::LogLayer;

    /// Telemetry of a build without it.
    pub(in crate::cli) enum Telemetry {}

    impl Telemetry {
        pub(in crate::cli) fn start(_url: &str) -> Result<Self, CliError> {
            Err(CliError::usage(
                "--telemetry: this build exports no telemetry: build hushflow with --features otel, or leave the flag out",
            ))
        }

        pub(in crate::cli) fn layers(&self) -> Vec<LogLayer> {
            match *self {}
        }
    }
}

#[cfg(feature = "otel")]
mod otlp {
    use std::time::Duration;

    use async_trait::async_trait;
    use bytes::Bytes;
    use hushflow::control::PRIVATE_LOG;
    use opentelemetry::KeyValue;
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
    use opentelemetry_http::{HttpClient, HttpError, Request, Response};
    use opentelemetry_otlp::{LogExporter, SpanExporter, WithExportConfig, WithHttpConfig};
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::logs::SdkLoggerProvider;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing::Metadata;
    use tracing_subscriber::Layer;
    use tracing_subscriber::filter::filter_fn;

    use crate::cli::CliError;
    use crate::cli::telemetry::LogLayer;

    /// Time limit of a request.
    const TIMEOUT: Duration = Duration::from_secs(2);

    /// Time limits at the end, for the remaining spans and for the remaining log.
    const LAST_TIMEOUT: Duration = Duration::from_secs(1);

    /// Maximum length of an answer of a collector.
    const ANSWER_LIMIT: u64 = 1 << 20;

    /// Exporters of the log and of spans, which send the rest when this is dropped.
    pub(in crate::cli) struct Telemetry {
        spans: SdkTracerProvider,
        logs: SdkLoggerProvider,
    }

    impl Telemetry {
        /// Sends telemetry to `url`, the address of a collector without `/v1/traces`.
        pub(in crate::cli) fn start(url: &str) -> Result<Self, CliError> {
            let refused = |error: &dyn std::fmt::Display| {
                CliError::usage(format!(
                    "--telemetry {url}: {error}: expected the address of a collector, such as http://127.0.0.1:4318"
                ))
            };
            let base = url.trim_end_matches('/');
            if !base.starts_with("http://") {
                return Err(refused(&"only http:// is sent, to a collector on this machine or in its pod"));
            }
            let settings = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).proxy(None);
            let settings = settings.max_redirects(0).http_status_as_error(false).build();
            let client = || OtlpClient(settings.clone().into());
            let spans = SpanExporter::builder()
                .with_http()
                .with_http_client(client())
                .with_endpoint(format!("{base}/v1/traces"))
                .with_timeout(TIMEOUT)
                .build()
                .map_err(|error| refused(&error))?;
            let logs = LogExporter::builder()
                .with_http()
                .with_http_client(client())
                .with_endpoint(format!("{base}/v1/logs"))
                .with_timeout(TIMEOUT)
                .build()
                .map_err(|error| refused(&error))?;
            let name = std::env::var("OTEL_SERVICE_NAME").unwrap_or_else(|_| "hushflow".into());
            let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
            let resource = Resource::builder().with_service_name(name).with_attribute(version).build();
            Ok(Telemetry {
                spans: SdkTracerProvider::builder()
                    .with_batch_exporter(spans)
                    .with_resource(resource.clone())
                    .build(),
                logs: SdkLoggerProvider::builder().with_batch_exporter(logs).with_resource(resource).build(),
            })
        }

        /// Returns the layers that pass events and spans on.
        pub(in crate::cli) fn layers(&self) -> Vec<LogLayer> {
            let spans = tracing_opentelemetry::layer()
                .with_tracer(self.spans.tracer("hushflow"))
                .with_location(false)
                .with_threads(false);
            let spans = spans.with_filter(filter_fn(|metadata| metadata.is_span() && is_exported(metadata)));
            let logs = OpenTelemetryTracingBridge::new(&self.logs).with_filter(filter_fn(is_exported));
            vec![spans.boxed(), logs.boxed()]
        }
    }

    /// Whether an event may be exported: only events of this crate are known to be public.
    fn is_exported(metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("hushflow") && metadata.target() != PRIVATE_LOG
    }

    impl Drop for Telemetry {
        fn drop(&mut self) {
            // An unavailable collector is not a fault of the run.
            let _ = self.spans.shutdown_with_timeout(LAST_TIMEOUT);
            let _ = self.logs.shutdown_with_timeout(LAST_TIMEOUT);
        }
    }

    /// A blocking client: each exporter has a thread of its own.
    #[derive(Debug)]
    struct OtlpClient(ureq::Agent);

    #[async_trait]
    impl HttpClient for OtlpClient {
        async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
            let (head, body) = request.into_parts();
            let (head, mut body) = self.0.run(Request::from_parts(head, body.to_vec()))?.into_parts();
            let answer = body.with_config().limit(ANSWER_LIMIT).read_to_vec()?;
            Ok(Response::from_parts(head, answer.into()))
        }
    }
}
