//! Refusals on the wire. Whatever goes wrong, axum's own rejections included, leaves as one
//! `application/problem+json` document that names its request.

use crate::core::Refused;
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ghost_model::name::sanitize;
use ghost_model::{Kind, Problem};

/// A refusal, with the status where it is not that of its kind.
#[derive(Clone, Debug)]
pub struct Reject {
    status: StatusCode,
    problem: Problem,
}

impl Reject {
    /// With a status of its own.
    pub fn new(status: StatusCode, problem: Problem) -> Self {
        Reject { status, problem }
    }
}

impl From<Problem> for Reject {
    fn from(problem: Problem) -> Self {
        let status = StatusCode::from_u16(problem.http_status());
        Reject {
            status: status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            problem,
        }
    }
}

impl From<Refused> for Reject {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Problem(problem) => problem.into(),
            Refused::Stale(problem) => Reject::new(StatusCode::PRECONDITION_FAILED, problem),
        }
    }
}

impl From<PathRejection> for Reject {
    fn from(e: PathRejection) -> Self {
        Problem::new(Kind::Invalid, sanitize(&e.body_text())).into()
    }
}

impl From<QueryRejection> for Reject {
    fn from(e: QueryRejection) -> Self {
        Problem::new(
            Kind::Invalid,
            format!("query: {}", sanitize(&e.body_text())),
        )
        .into()
    }
}

impl IntoResponse for Reject {
    /// The document is written by [`finish`], which knows the request.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// The response as it leaves: a refusal gets its document, also one that axum made by itself.
pub(super) fn finish(response: Response, request_id: &str) -> Response {
    let status = response.status();
    if !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let mut problem = match response.extensions().get::<Reject>() {
        Some(reject) => reject.problem.clone(),
        None => {
            let kind = match status {
                StatusCode::NOT_FOUND => Kind::NotFound,
                s if s.is_server_error() => Kind::Unavailable,
                _ => Kind::Invalid,
            };
            let reason = status.canonical_reason().unwrap_or("refused");
            Problem::new(kind, reason.to_lowercase())
        }
    };
    tracing::debug!(request_id, status = status.as_u16(), "{problem}");
    problem.request_id = Some(request_id.to_owned());
    let mut out = (status, Json(problem)).into_response();
    let problem_json = HeaderValue::from_static("application/problem+json");
    out.headers_mut().insert(header::CONTENT_TYPE, problem_json);
    if let Some(allow) = response.headers().get(header::ALLOW) {
        out.headers_mut().insert(header::ALLOW, allow.clone());
    }
    out
}
