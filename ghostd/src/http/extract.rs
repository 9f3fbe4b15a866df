//! What handlers take out of a request, each with a refusal that says what was wrong.

use super::problem::Reject;
use crate::caller::Caller;
use crate::core::IfMatch;
use axum::body::to_bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use ghost_model::name::sanitize;
use ghost_model::{Kind, Name, Problem};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// No body is larger.
pub(super) const MOST: usize = 1 << 20;
/// A body that is not there by then does not come.
const PATIENCE: Duration = Duration::from_secs(10);

/// A JSON document.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Reject;

    async fn from_request(request: Request, _: &S) -> Result<Self, Reject> {
        let announced = request.headers().get(header::CONTENT_LENGTH);
        let announced = announced
            .and_then(|v| v.to_str().ok())
            .and_then(|v| v.parse::<u64>().ok());
        if announced.is_some_and(|n| n > MOST as u64) {
            return Err(too_large());
        }
        let read = to_bytes(request.into_body(), MOST);
        let bytes = tokio::time::timeout(PATIENCE, read)
            .await
            .map_err(|_| {
                let detail = format!("the body was not there after {PATIENCE:?}");
                Reject::new(
                    StatusCode::REQUEST_TIMEOUT,
                    Problem::new(Kind::Invalid, detail),
                )
            })?
            .map_err(|_| too_large())?;
        serde_json::from_slice(&bytes).map(Body).map_err(|e| {
            let text = sanitize(&e.to_string());
            let kind = if text.starts_with("unknown field") {
                Kind::UnknownKey
            } else {
                Kind::Invalid
            };
            Problem::new(kind, format!("body: {text}")).into()
        })
    }
}

fn too_large() -> Reject {
    Reject::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        Problem::new(
            Kind::Invalid,
            format!("the body is larger than {MOST} bytes"),
        ),
    )
}

/// The `{name}` of a path.
#[derive(Debug)]
pub(super) struct Named(pub(super) Name);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Reject;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Reject> {
        let Path(text) = Path::<String>::from_request_parts(parts, state).await?;
        name(&text).map(Named)
    }
}

/// A container's name.
pub(super) fn name(text: &str) -> Result<Name, Reject> {
    text.parse().map_err(|e: ghost_model::name::NameError| {
        Problem::new(Kind::Invalid, e.to_string()).into()
    })
}

/// A query of known keys.
#[derive(Debug)]
pub(super) struct Query<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Reject;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Reject> {
        let query = axum::extract::Query::from_request_parts(parts, state).await?;
        Ok(Query(query.0))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Reject;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Reject> {
        parts.extensions.get::<Caller>().copied().ok_or_else(|| {
            Problem::new(Kind::Denied, "the caller's credentials are not known").into()
        })
    }
}

/// `If-Match`, where there is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Condition(pub(super) Option<IfMatch>);

impl<S: Send + Sync> FromRequestParts<S> for Condition {
    type Rejection = Reject;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Reject> {
        let Some(value) = parts.headers.get(header::IF_MATCH) else {
            return Ok(Condition(None));
        };
        let text = value.to_str().unwrap_or_default();
        if text == "*" {
            return Ok(Condition(Some(IfMatch::Any)));
        }
        let generation = text
            .strip_prefix('"')
            .and_then(|t| t.strip_suffix('"'))
            .unwrap_or(text)
            .parse();
        match generation {
            Ok(g) => Ok(Condition(Some(IfMatch::Generation(g)))),
            Err(_) => Err(Problem::new(
                Kind::Invalid,
                format!("If-Match: {:?} is no ETag of ghostd: send the one that was given, such as \"8\"", sanitize(text)),
            )
            .into()),
        }
    }
}
