//! REST: routes, and what is around every request.

mod containers;
mod extract;
mod node;
mod peers;
mod problem;
mod server;

pub use server::Server;

use crate::caller::Admins;
use crate::control::Observed;
use crate::core::Handle;
use crate::events::Events;
use crate::metrics::{LoopMetrics, Metrics};
use crate::overflow::Overflow;
use crate::proc::Proc;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use ghost_model::name::sanitize;
use ghost_model::{Kind, Problem};
use problem::Reject;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tracing::Instrument;
use utoipa::openapi::OpenApi as Document;
use utoipa::{IntoResponses, OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// No answer takes longer; the longest `?wait=` is well within it.
const PATIENCE: Duration = Duration::from_secs(90);

/// What handlers work with.
#[derive(Clone, Debug)]
pub struct App {
    /// Takes changes, shows what is asked for.
    pub core: Handle,
    /// Shows what is so.
    pub observed: watch::Receiver<Arc<Observed>>,
    /// What happened.
    pub events: Events,
    /// What is scraped.
    pub metrics: Arc<Metrics>,
    /// How the control loop does.
    pub of_loop: Arc<LoopMetrics>,
    /// Looks up processes.
    pub proc: Proc,
    /// Where listeners are taken, if they are.
    pub notify: Option<Arc<Path>>,
    /// Other hosts.
    pub overflow: Overflow,
    /// Who administers.
    pub admins: Admins,
    /// Set when the daemon stops, so that streams end.
    pub stopping: watch::Receiver<bool>,
}

impl App {
    fn observed(&self) -> Arc<Observed> {
        self.observed.borrow().clone()
    }
}

/// A list that is given whole.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Items<T> {
    items: Vec<T>,
}

/// Every refusal has this form.
#[derive(IntoResponses)]
#[expect(
    dead_code,
    reason = "its shape is documented, it is written by problem::finish"
)]
pub(crate) enum Refusals {
    /// A refusal
    #[response(status = "4XX", content_type = "application/problem+json")]
    Caller(Problem),
    /// Not now, or not here
    #[response(status = "5XX", content_type = "application/problem+json")]
    Daemon(Problem),
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "ghostd",
        description = "GPU containers of one host, over a unix socket.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "containers", description = "Groups of processes with a share of GPU time"),
        (name = "node", description = "This host"),
        (name = "operations", description = "For those who run ghostd")
    )
)]
struct Base;

fn routes() -> (Router<App>, Document) {
    let (router, mut document) = OpenApiRouter::with_openapi(Base::openapi())
        .routes(routes!(containers::list, containers::create))
        .routes(routes!(
            containers::read,
            containers::replace,
            containers::patch,
            containers::delete
        ))
        .routes(routes!(containers::revert))
        .routes(routes!(containers::sources))
        .routes(routes!(containers::stat))
        .routes(routes!(containers::procs, containers::attach))
        .routes(routes!(containers::detach))
        .routes(routes!(containers::apply))
        .routes(routes!(peers::list))
        .routes(routes!(peers::put, peers::remove))
        .routes(routes!(peers::drain))
        .routes(routes!(peers::join))
        .routes(routes!(peers::placement))
        .routes(routes!(peers::ticket))
        .routes(routes!(node::gpus))
        .routes(routes!(node::gpu))
        .routes(routes!(node::node))
        .routes(routes!(node::reload))
        .routes(routes!(node::events))
        .routes(routes!(node::metrics))
        .routes(routes!(node::healthz))
        .routes(routes!(node::readyz))
        .split_for_parts();
    document.info.version = env!("CARGO_PKG_VERSION").into();
    (router, document)
}

/// The OpenAPI document, made from the handlers.
pub fn openapi() -> Document {
    routes().1
}

/// All routes. Each request must carry its [`crate::caller::Caller`] as an extension.
pub fn router(app: App) -> Router {
    let (router, document) = routes();
    router
        .route(
            "/openapi.json",
            axum::routing::get(async move || Json(document)),
        )
        .fallback(async |request: Request| {
            let path = sanitize(request.uri().path());
            Reject::from(Problem::new(Kind::NotFound, format!("no route {path:?}")))
        })
        .method_not_allowed_fallback(async |request: Request| {
            let detail = format!(
                "{} is not for {:?}",
                request.method(),
                sanitize(request.uri().path())
            );
            let problem = Problem::new(Kind::Invalid, detail);
            Reject::new(StatusCode::METHOD_NOT_ALLOWED, problem)
        })
        .layer(axum::middleware::from_fn_with_state(app.clone(), around))
        .with_state(app)
}

/// Gives each request its id, counts it, and finishes refusals.
async fn around(State(app): State<App>, request: Request, next: Next) -> Response {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = format!(
        "{:x}-{:x}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    let method = request.method().clone();
    let matched = request.extensions().get::<MatchedPath>();
    let route = matched.map_or_else(|| "none".to_owned(), |m| m.as_str().to_owned());
    let span = tracing::info_span!("request", request_id = %id);
    let answered = next.run(request).instrument(span);
    let response = match tokio::time::timeout(PATIENCE, answered).await {
        Ok(response) => response,
        Err(_) => {
            let detail = format!("no answer after {PATIENCE:?}: what was asked may still happen");
            Reject::from(Problem::new(Kind::Unavailable, detail)).into_response()
        }
    };
    let mut response = problem::finish(response, &id);
    let status = response.status().as_u16();
    // A method that nobody knows must not become a label.
    let known = ["GET", "PUT", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    let label = known.into_iter().find(|m| *m == method.as_str());
    app.metrics
        .answered(label.unwrap_or("other"), &route, status);
    tracing::debug!(request_id = %id, %method, route, status, "answered");
    if let Ok(value) = HeaderValue::try_from(id) {
        let name = HeaderName::from_static("x-request-id");
        response.headers_mut().insert(name, value);
    }
    response
}
