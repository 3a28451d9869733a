//! Requests to a bucket. The client is asynchronous. A runtime on the caller's own thread drives
//! one request at a time, and checks for a stop of the run.

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{
    Certificate, ClientOptions, GetOptions, GetRange, ObjectStore, PutMode, PutOptions, PutPayload,
    RetryConfig, UpdateVersion,
};
use tokio::runtime::{Builder, Runtime};

use super::bucket::Bucket;
use crate::connect::error::{RequestError, refusal, transient};
use crate::control::{Control, POLL_INTERVAL};
use crate::security::{SecurityError, tls_problem};

/// Longest time for a request, and for its connection.
const TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of bytes of an object that are requested at once.
pub(super) const CHUNK: u64 = 4 << 20;

/// Maximum number of objects of a folder that are listed.
const MAX_OBJECTS: usize = 1_000_000;

/// A client of a bucket. It connects at its first request.
pub(super) struct BucketClient {
    bucket: Bucket,
    /// Name of the source or sink, for messages.
    pub(super) name: String,
    pub(super) control: Control,
    open: Option<(Runtime, AmazonS3)>,
}

/// An object of a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FoundObject {
    pub(super) key: String,
    pub(super) tag: String,
    pub(super) size: u64,
}

/// Reason for a failed request. The caller decides on the reaction.
#[derive(Debug)]
pub(super) enum ObjectError {
    /// There is no such object.
    Missing,
    /// The object was replaced by another one.
    Changed,
    Other(RequestError),
}

impl From<RequestError> for ObjectError {
    fn from(error: RequestError) -> Self {
        ObjectError::Other(error)
    }
}

impl BucketClient {
    pub(super) fn new(bucket: &Bucket, name: String, control: &Control) -> Self {
        BucketClient { bucket: bucket.clone(), name, control: control.clone(), open: None }
    }

    /// Closes the connections and forgets the secret. The next request reads it again.
    pub(super) fn close(&mut self) {
        self.open = None;
    }

    /// Reads the secret, and sets up the client.
    fn connect(&self) -> Result<(Runtime, AmazonS3), RequestError> {
        // The HTTP client uses the cryptography provider of the process. An embedding program may
        // have set another provider, which works too.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let Bucket { name, endpoint, region, roots, login } = &self.bucket;
        let mut builder = match (&login.user, &login.password) {
            (Some(user), Some(password)) => {
                let password = password.read(&self.control)?;
                AmazonS3Builder::new().with_access_key_id(user).with_secret_access_key(password.text())
            }
            _ => AmazonS3Builder::from_env(),
        };
        let mut options = ClientOptions::new().with_timeout(TIMEOUT).with_connect_timeout(CONNECT_TIMEOUT);
        if let Some(endpoint) = endpoint {
            options = options.with_allow_http(endpoint.starts_with("http://"));
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = region {
            builder = builder.with_region(region);
        }
        if let Some(path) = roots {
            let failed = |source| SecurityError::File { field: "tls_roots", path: path.clone(), source };
            let pem = std::fs::read(path).map_err(failed)?;
            let unusable =
                || SecurityError::Pem { field: "tls_roots", path: path.clone(), expected: "certificate" };
            let found = Certificate::from_pem_bundle(&pem).map_err(|_| unusable())?;
            if found.is_empty() {
                return Err(unusable().into());
            }
            options = options.with_no_system_certificates(true);
            options = found.into_iter().fold(options, ClientOptions::with_root_certificate);
        }
        // The client panics on text that is not a valid header or address.
        let value = |key| builder.get_config_value(&key).unwrap_or_default();
        let plain = [AmazonS3ConfigKey::AccessKeyId, AmazonS3ConfigKey::Token, AmazonS3ConfigKey::Region];
        let is_plain = plain.into_iter().all(|key| is_visible(&value(key)));
        let endpoint = value(AmazonS3ConfigKey::Endpoint);
        if !is_plain || !(endpoint.is_empty() || is_address(&endpoint)) {
            let problem = "the access key, its token, the region or the endpoint of the environment (AWS_…) can't be used";
            return Err(refusal(self.name.clone(), problem));
        }
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let store = builder.with_bucket_name(name).with_client_options(options).with_retry(retry).build();
        let store = store.map_err(|error| refusal(self.name.clone(), &innermost(&error).to_string()))?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok((runtime, store))
    }

    /// Makes a request, until it is answered, the run is stopped or the time is over.
    fn ask<T, F>(&mut self, request: impl FnOnce(AmazonS3) -> F) -> Result<T, ObjectError>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        if self.open.is_none() {
            self.open = Some(self.connect()?);
        }
        let Some((runtime, store)) = &self.open else {
            return Err(transient("the client is not there").into());
        };
        let (control, begun) = (&self.control, Instant::now());
        let mut request = pin!(request(store.clone()));
        let answer = runtime.block_on(async {
            loop {
                match tokio::time::timeout(POLL_INTERVAL, request.as_mut()).await {
                    Ok(answer) => return Ok(answer),
                    Err(_) => control.keep_waiting(begun, TIMEOUT)?,
                }
            }
        });
        let answer: io::Result<object_store::Result<T>> = answer;
        let answer = answer.map_err(|error| ObjectError::Other(error.into()))?;
        answer.map_err(|error| self.request_error(&error))
    }

    /// Lists the objects of a folder, without those of folders in it, in the order of their keys.
    pub(super) fn list(&mut self, folder: &str) -> Result<Vec<FoundObject>, RequestError> {
        let folder = (!folder.is_empty()).then(|| self.path(folder)).transpose()?;
        let listed = self.ask(async |store| store.list_with_delimiter(folder.as_ref()).await);
        let listed = match listed {
            Err(ObjectError::Missing) => return Err(RequestError::NoStream),
            Err(ObjectError::Changed) => return Err(transient("the list has changed meanwhile")),
            Err(ObjectError::Other(error)) => return Err(error),
            Ok(listed) => listed.objects,
        };
        if listed.len() > MAX_OBJECTS {
            let problem = "more than a million objects are in the folder: name one with fewer";
            return Err(refusal(self.name.clone(), problem));
        }
        let found = listed.into_iter().map(|object| FoundObject {
            key: object.location.to_string(),
            tag: object.e_tag.unwrap_or_default(),
            size: object.size,
        });
        let mut found: Vec<_> = found.collect();
        found.sort();
        Ok(found)
    }

    /// Returns at most `length` bytes of an object from `start` on, if it still has this tag.
    pub(super) fn range(
        &mut self,
        key: &str,
        tag: &str,
        start: u64,
        length: u64,
    ) -> Result<Bytes, ObjectError> {
        let if_match = (!tag.is_empty()).then(|| tag.to_owned());
        let range = Some(GetRange::Bounded(start..start.saturating_add(length)));
        let options = GetOptions { if_match, range, ..GetOptions::default() };
        let key = self.path(key)?;
        self.ask(async |store| store.get_opts(&key, options).await?.bytes().await)
    }

    /// Returns an object and its tag.
    pub(super) fn whole(&mut self, key: &str) -> Result<(Bytes, String), ObjectError> {
        let key = self.path(key)?;
        self.ask(async |store| {
            let found = store.get_opts(&key, GetOptions::default()).await?;
            let tag = found.meta.e_tag.clone().unwrap_or_default();
            Ok((found.bytes().await?, tag))
        })
    }

    /// Writes an object that has this tag, or that is not there yet. Returns its new tag.
    pub(super) fn put(
        &mut self,
        key: &str,
        tag: Option<&str>,
        bytes: Vec<u8>,
    ) -> Result<String, ObjectError> {
        let mode = match tag {
            None => PutMode::Create,
            Some(tag) => PutMode::Update(UpdateVersion { e_tag: Some(tag.into()), version: None }),
        };
        let (key, payload) = (self.path(key)?, PutPayload::from(bytes));
        let put = self.ask(async |store| store.put_opts(&key, payload, PutOptions::from(mode)).await)?;
        Ok(put.e_tag.unwrap_or_default())
    }

    /// Parses a key without encoding it again.
    fn path(&self, key: &str) -> Result<Path, RequestError> {
        Path::parse(key).map_err(|error| refusal(self.name.clone(), &error.to_string()))
    }

    /// Explains an error of the client.
    fn request_error(&self, error: &object_store::Error) -> ObjectError {
        use object_store::Error as Failure;
        let refused = |problem: &str| ObjectError::Other(refusal(self.name.clone(), problem));
        match error {
            Failure::NotFound { .. } => ObjectError::Missing,
            Failure::Precondition { .. } | Failure::AlreadyExists { .. } => ObjectError::Changed,
            Failure::PermissionDenied { .. } | Failure::Unauthenticated { .. } => {
                refused(&self.refused_key())
            }
            Failure::InvalidPath { .. } | Failure::NotSupported { .. } | Failure::NotImplemented { .. } => {
                refused(&error.to_string())
            }
            _ => ObjectError::Other(self.failure(error)),
        }
    }

    fn refused_key(&self) -> String {
        let fields = match &self.bucket.login.password {
            Some(password) => format!("user and {}", password.field()),
            None => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY".into(),
        };
        format!(
            "the store refuses this access key: check {fields}, what the key may do in the bucket, and the clock of this machine"
        )
    }

    /// Explains a failed connection or an answer that is an error.
    fn failure(&self, error: &(dyn Error + 'static)) -> RequestError {
        let peer = self.bucket.endpoint.as_deref().unwrap_or("the object store");
        if let Some(problem) = causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>()) {
            return SecurityError::Peer { peer: peer.into(), problem: tls_problem(problem.clone()) }.into();
        }
        let text = innermost(error).to_string();
        if text.contains("NoSuchBucket") {
            return RequestError::NoStream;
        }
        // The rest is the store's answer in XML.
        let text = text.split_once(": <").map_or(text.as_str(), |(before, _)| before);
        // The client has no error kind for refused lists.
        if ["code: 401", "code: 403"].iter().any(|status| text.contains(status)) {
            return refusal(self.name.clone(), &self.refused_key());
        }
        let words: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
        transient(words)
    }
}

/// Whether a text is allowed in the head of a request.
pub(super) fn is_visible(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether a text is the address of a store.
pub(super) fn is_address(text: &str) -> bool {
    let is_http = |url: reqwest::Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    is_visible(text) && reqwest::Url::parse(text).is_ok_and(is_http)
}

/// The error and its causes, outermost first.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error: &&'a (dyn Error + 'static)| {
        // An I/O error skips the error that it wraps.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        wrapped.map(|wrapped| -> &(dyn Error + 'static) { wrapped }).or(error.source())
    })
}

fn innermost<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    causes(error).last().unwrap_or(error)
}
