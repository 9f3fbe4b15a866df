//! This host: its GPUs, what is held here, events, metrics, health, reload.

use super::problem::Reject;
use super::{App, Items, Refusals};
use crate::caller::Caller;
use crate::core::Request;
use crate::view;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, sse};
use ghost_model::name::sanitize;
use ghost_model::report::Node;
use ghost_model::{GpuId, GpuInfo, Kind, Problem};
use serde::Serialize;
use std::convert::Infallible;
use std::time::Duration;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::ToSchema;

/// A loop that made no turn for this long hangs.
const HUNG: Duration = Duration::from_secs(5);
/// How often a quiet stream of events shows that it lives.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Events that are taken out of the ring at a time.
const BATCH: usize = 256;

/// What a reload found.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Reloaded {
    /// What is wrong with container files; what they said before stays in force.
    notes: Vec<String>,
}

/// List the GPUs of this host
#[utoipa::path(get, path = "/v1/gpus", tag = "node",
    responses((status = 200, body = Items<GpuInfo>), Refusals))]
pub(super) async fn gpus(State(app): State<App>) -> Json<Items<GpuInfo>> {
    let items = (*app.observed().gpus).clone();
    Json(Items { items })
}

/// Read one GPU
#[utoipa::path(get, path = "/v1/gpus/{gpu}", tag = "node",
    params(("gpu" = String, Path, description = "UUID, index or PCI address")),
    responses((status = 200, body = GpuInfo), Refusals))]
pub(super) async fn gpu(
    State(app): State<App>,
    path: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Result<Json<GpuInfo>, Reject> {
    let Path(text) = path?;
    let all = app.observed().gpus.clone();
    let id = text
        .parse()
        .and_then(|id: GpuId| id.resolve(&all))
        .map_err(|e| Problem::new(Kind::NotFound, e.to_string()))?;
    let found = all.iter().find(|g| g.id == id).cloned();
    let gone = || Problem::new(Kind::NotFound, format!("no GPU {id}"));
    Ok(Json(found.ok_or_else(gone)?))
}

/// Read what is held here, and by whom
#[utoipa::path(get, path = "/v1/node", tag = "node", responses((status = 200, body = Node), Refusals))]
pub(super) async fn node(State(app): State<App>) -> Json<Node> {
    let notify = app.notify.as_deref();
    let node = view::node(&app.core.catalog(), &app.observed(), notify);
    Json(Node {
        overflow: app.overflow.listener(),
        ..node
    })
}

/// Read the container files again
#[utoipa::path(post, path = "/v1/reload", tag = "node",
    responses((status = 200, body = Reloaded), Refusals))]
pub(super) async fn reload(
    State(app): State<App>,
    caller: Caller,
) -> Result<Json<Reloaded>, Reject> {
    let outcome = app.core.ask(caller, Request::Reload).await?;
    Ok(Json(Reloaded {
        notes: outcome.notes,
    }))
}

/// Follow what happens
#[utoipa::path(get, path = "/v1/events", tag = "node",
    params(("Last-Event-ID" = Option<u64>, Header, description = "Begin after this; without it, now")),
    responses((status = 200, content_type = "text/event-stream", body = ghost_model::report::Event), Refusals))]
pub(super) async fn events(
    State(app): State<App>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, Reject> {
    let mut latest = app.events.subscribe();
    let mut last = *latest.borrow_and_update();
    if let Some(value) = headers.get("last-event-id") {
        let text = value.to_str().unwrap_or_default();
        let wrong = || {
            let text = sanitize(text);
            Problem::new(
                Kind::Invalid,
                format!("Last-Event-ID: {text:?} is not a number"),
            )
        };
        last = text.parse().map_err(|_| wrong())?;
        latest.mark_changed();
    }
    let (sender, receiver) = tokio::sync::mpsc::channel(BATCH);
    let ring = app.events.clone();
    let mut stopping = app.stopping.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = sender.closed() => return,
                _ = stopping.wait_for(|stop| *stop) => return,
                changed = latest.changed() => if changed.is_err() { return },
            }
            loop {
                let batch = ring.after(last, BATCH);
                let Some(newest) = batch.last() else { break };
                last = newest.id;
                for event in batch {
                    let line = sse::Event::default()
                        .id(event.id.to_string())
                        .event(event.what.as_str())
                        .json_data(&event);
                    // An event is text and numbers: it always has a JSON form.
                    let Ok(line) = line else { continue };
                    if sender.send(Ok(line)).await.is_err() {
                        return;
                    }
                }
            }
        }
    });
    let heartbeat = KeepAlive::new().interval(HEARTBEAT);
    Ok(Sse::new(ReceiverStream::new(receiver)).keep_alive(heartbeat))
}

/// Prometheus metrics
#[utoipa::path(get, path = "/metrics", tag = "operations",
    responses((status = 200, body = String, content_type = "application/openmetrics-text"), Refusals))]
pub(super) async fn metrics(State(app): State<App>) -> Result<impl IntoResponse, Reject> {
    let text = app.metrics.text();
    let text = text.map_err(|e| Problem::new(Kind::Unavailable, format!("metrics: {e}")))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text))
}

/// Whether the control loop lives
#[utoipa::path(get, path = "/healthz", tag = "operations",
    responses((status = 200, body = String, content_type = "text/plain"), Refusals))]
pub(super) async fn healthz(State(app): State<App>) -> Result<&'static str, Reject> {
    match app.of_loop.since_last_turn() {
        Some(age) if age < HUNG => Ok("ok\n"),
        Some(age) => {
            let detail = format!("the control loop made no turn for {} s", age.as_secs());
            Err(Problem::new(Kind::Unavailable, detail).into())
        }
        None => Err(Problem::new(Kind::Unavailable, "the control loop made no turn yet").into()),
    }
}

/// Whether everything that was asked for at the start is in force
#[utoipa::path(get, path = "/readyz", tag = "operations",
    responses((status = 200, body = String, content_type = "text/plain"), Refusals))]
pub(super) async fn readyz(State(app): State<App>) -> Result<&'static str, Reject> {
    if app.observed().in_force.is_empty() {
        let detail = "what was asked for is not in force yet";
        return Err(Problem::new(Kind::Unavailable, detail).into());
    }
    Ok("ok\n")
}
