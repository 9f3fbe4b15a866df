//! `/v1/containers` and `/v1/apply`.

use super::extract::{Body, Condition, Named, Query, name};
use super::problem::Reject;
use super::{App, Items, Refusals};
use crate::caller::Caller;
use crate::core::{Change, Declaration, Entry, Outcome, Patch, Request};
use crate::view;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use ghost_model::name::sanitize;
use ghost_model::report::{Container, EventFlags, Page, Process, Source, Stat};
use ghost_model::value::CgroupPath;
use ghost_model::{Bytes, GpuId, Kind, MemoryEvents, Name, Problem, Spec};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value as Document;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

/// The most containers of a page, and what it has where nothing is said.
const PAGE: usize = 1000;
/// The longest `?wait=`.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// The most members of one request.
const MEMBERS: usize = 4096;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// At most so many, 1 to 1000.
    limit: Option<usize>,
    /// `next_page_token` of the page before.
    page_token: Option<String>,
    /// Only those with this label: `KEY=VALUE`, or `KEY` for any value.
    label: Option<String>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ChangeQuery {
    /// Answer when the change is in force, or after this time (`5s`, `500ms`, up to `60s`)
    /// whichever is first: `observed_generation` says which.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    wait: Wait,
    /// Say what would be, and change nothing.
    #[serde(default)]
    dry_run: bool,
    /// Until the daemon ends.
    #[serde(default)]
    runtime: bool,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WaitQuery {
    /// As for PATCH.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    wait: Wait,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReplaceQuery {
    /// As for PATCH.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    wait: Wait,
    /// Say what would be, and change nothing.
    #[serde(default)]
    dry_run: bool,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeleteQuery {
    /// Also where it has processes: they go to the container above.
    #[serde(default)]
    force: bool,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ApplyQuery {
    /// As for PATCH.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    wait: Wait,
    /// Say what would be, and change nothing.
    #[serde(default)]
    dry_run: bool,
    /// Delete what a command created and is not in the document.
    #[serde(default)]
    prune: bool,
}

/// A time such as `5s` or `500ms`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(try_from = "String")]
struct Wait(Duration);

impl TryFrom<String> for Wait {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let parse = |n: &str| n.parse::<u32>().ok();
        let time = if let Some(ms) = text.strip_suffix("ms") {
            parse(ms).map(|n| Duration::from_millis(n.into()))
        } else {
            let seconds = text.strip_suffix('s').and_then(parse);
            seconds.map(|n| Duration::from_secs(n.into()))
        };
        time.filter(|t| *t <= LONGEST_WAIT)
            .map(Wait)
            .ok_or_else(|| {
                format!(
                    "wait: {:?} is no time: write 5s or 500ms, at most 60s",
                    sanitize(&text)
                )
            })
    }
}

/// A container to be. What a `GET` gave may be sent back: what is reported only is not read.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Declared {
    /// Its name; with `PUT` that of the path, which need not be repeated.
    name: Option<String>,
    /// Its settings.
    #[serde(default)]
    #[schema(value_type = Option<Spec>)]
    spec: Option<Document>,
    /// Its labels.
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// The user who may lower its limits and attach own processes.
    owner: Option<u32>,
    #[serde(default, rename = "uid")]
    #[schema(ignore)]
    _uid: Option<IgnoredAny>,
    #[serde(default, rename = "generation")]
    #[schema(ignore)]
    _generation: Option<IgnoredAny>,
    #[serde(default, rename = "status")]
    #[schema(ignore)]
    _status: Option<IgnoredAny>,
}

impl Declared {
    fn declaration(self, name: Name) -> Declaration {
        Declaration {
            name,
            spec: self
                .spec
                .unwrap_or_else(|| Document::Object(Default::default())),
            labels: self.labels,
            owner: self.owner,
        }
    }

    fn named(self) -> Result<Declaration, Reject> {
        let text = self
            .name
            .as_deref()
            .ok_or_else(|| Problem::new(Kind::Invalid, "body: a container needs a \"name\""))?;
        let name = name(text)?;
        Ok(self.declaration(name))
    }
}

/// A JSON merge patch: `null` takes a value or a label back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Patched {
    /// Of its settings.
    #[serde(default)]
    #[schema(value_type = Option<Spec>)]
    spec: Option<Document>,
    /// Of its labels.
    #[serde(default)]
    labels: BTreeMap<String, Option<String>>,
    /// Its new owner.
    owner: Option<u32>,
}

/// Members to add.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewMembers {
    /// By pid.
    #[serde(default)]
    pids: Vec<u32>,
    /// By cgroup, as paths below the cgroup v2 mount.
    #[serde(default)]
    cgroups: Vec<String>,
}

/// The keys that are reported only.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Readings {
    #[serde(rename = "gpu.devices.effective")]
    devices_effective: Vec<GpuId>,
    #[serde(rename = "gpu.memory.current")]
    memory_current: BTreeMap<GpuId, Bytes>,
    #[serde(rename = "gpu.memory.peak")]
    memory_peak: BTreeMap<GpuId, Bytes>,
    #[serde(rename = "gpu.memory.events")]
    memory_events: BTreeMap<GpuId, MemoryEvents>,
    #[serde(rename = "gpu.memory.events.local")]
    memory_events_local: BTreeMap<GpuId, MemoryEvents>,
    #[serde(rename = "gpu.stat")]
    stat: BTreeMap<GpuId, Stat>,
    #[serde(rename = "ghost.events")]
    events: EventFlags,
}

/// What an `apply` did, or would do.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Applied {
    changes: Vec<Change>,
}

/// List containers
#[utoipa::path(get, path = "/v1/containers", tag = "containers", params(ListQuery),
    responses((status = 200, body = Page<Container>), Refusals))]
pub(super) async fn list(
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<Container>>, Reject> {
    let limit = query.limit.unwrap_or(PAGE);
    if !(1..=PAGE).contains(&limit) {
        let detail = format!("limit: {limit} is not within 1 and {PAGE}");
        return Err(Problem::new(Kind::Invalid, detail).into());
    }
    let from = match &query.page_token {
        Some(token) => Bound::Excluded(name(token)?),
        None => Bound::Unbounded,
    };
    let label = query.label.as_deref().map(|l| match l.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (l, None),
    });
    let fits = |e: &Entry| {
        label.is_none_or(|(key, value)| {
            let labels = e.all_labels();
            labels
                .get(key)
                .is_some_and(|v| value.is_none_or(|w| w == v))
        })
    };
    let catalog = app.core.catalog();
    let now = app.observed();
    let elsewhere = app.overflow.stats.look(&catalog, &app.admins);
    let mut rest = catalog
        .entries
        .range((from, Bound::Unbounded))
        .map(|(_, entry)| entry)
        .filter(|e| fits(e));
    let items: Vec<Container> = rest
        .by_ref()
        .take(limit)
        .map(|e| view::container(e, &catalog, &now, &app.proc, app.overflow.of(e, &elsewhere)))
        .collect();
    let more = rest.next().is_some();
    let last = items.last().filter(|_| more).map(|c| c.name.to_string());
    Ok(Json(Page {
        items,
        next_page_token: last,
    }))
}

/// Create a container
#[utoipa::path(post, path = "/v1/containers", tag = "containers", params(WaitQuery),
    request_body = Declared,
    responses((status = 201, body = Container, headers(("Location" = String), ("ETag" = String))), Refusals))]
pub(super) async fn create(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<WaitQuery>,
    Body(body): Body<Declared>,
) -> Result<(StatusCode, HeaderMap, Json<Container>), Reject> {
    let request = Request::Create(body.named()?);
    app.change(caller, request, query.wait.0).await
}

/// Read a container
#[utoipa::path(get, path = "/v1/containers/{name}", tag = "containers", params(("name" = Name, Path)),
    responses((status = 200, body = Container, headers(("ETag" = String))), Refusals))]
pub(super) async fn read(
    State(app): State<App>,
    Named(name): Named,
) -> Result<(HeaderMap, Json<Container>), Reject> {
    let container = app.container(&name)?;
    Ok((etag(container.generation), Json(container)))
}

/// Create a container or replace its spec and labels
#[utoipa::path(put, path = "/v1/containers/{name}", tag = "containers",
    params(("name" = Name, Path), ("If-Match" = Option<String>, Header), ReplaceQuery),
    request_body = Declared,
    responses((status = 200, body = Container), (status = 201, body = Container), Refusals))]
pub(super) async fn replace(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named,
    Condition(if_match): Condition,
    Query(query): Query<ReplaceQuery>,
    Body(body): Body<Declared>,
) -> Result<(StatusCode, HeaderMap, Json<Container>), Reject> {
    if body.name.as_deref().is_some_and(|n| n != name.as_str()) {
        let detail = format!("body: the name is not {name}, as the path says");
        return Err(Problem::new(Kind::Invalid, detail).into());
    }
    let request = Request::Replace {
        declaration: body.declaration(name),
        if_match,
        dry_run: query.dry_run,
    };
    app.change(caller, request, query.wait.0).await
}

/// Change a container
#[utoipa::path(patch, path = "/v1/containers/{name}", tag = "containers",
    params(("name" = Name, Path), ("If-Match" = Option<String>, Header), ChangeQuery),
    request_body(content = Patched, content_type = "application/merge-patch+json"),
    responses((status = 200, body = Container), Refusals))]
pub(super) async fn patch(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named,
    Condition(if_match): Condition,
    Query(query): Query<ChangeQuery>,
    Body(body): Body<Patched>,
) -> Result<(StatusCode, HeaderMap, Json<Container>), Reject> {
    let request = Request::Patch {
        name,
        patch: Patch {
            spec: body.spec,
            labels: body.labels,
            owner: body.owner,
        },
        if_match,
        runtime: query.runtime,
        dry_run: query.dry_run,
    };
    app.change(caller, request, query.wait.0).await
}

/// Delete a container
#[utoipa::path(delete, path = "/v1/containers/{name}", tag = "containers",
    params(("name" = Name, Path), ("If-Match" = Option<String>, Header), DeleteQuery),
    responses((status = 204), Refusals))]
pub(super) async fn delete(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named,
    Condition(if_match): Condition,
    Query(query): Query<DeleteQuery>,
) -> Result<StatusCode, Reject> {
    let request = Request::Delete {
        name,
        force: query.force,
        if_match,
    };
    app.core.ask(caller, request).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Drop what commands set
#[utoipa::path(post, path = "/v1/containers/{name}/revert", tag = "containers",
    params(("name" = Name, Path), ("If-Match" = Option<String>, Header), WaitQuery),
    responses((status = 200, body = Container), Refusals))]
pub(super) async fn revert(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named,
    Condition(if_match): Condition,
    Query(query): Query<WaitQuery>,
) -> Result<(StatusCode, HeaderMap, Json<Container>), Reject> {
    let request = Request::Revert { name, if_match };
    app.change(caller, request, query.wait.0).await
}

/// Where each value came from
#[utoipa::path(get, path = "/v1/containers/{name}/sources", tag = "containers",
    params(("name" = Name, Path)), responses((status = 200, body = Items<Source>), Refusals))]
pub(super) async fn sources(
    State(app): State<App>,
    Named(name): Named,
) -> Result<Json<Items<Source>>, Reject> {
    let items = app.entry(&name)?.sources();
    Ok(Json(Items { items }))
}

/// The keys that are reported only
#[utoipa::path(get, path = "/v1/containers/{name}/stat", tag = "containers",
    params(("name" = Name, Path)), responses((status = 200, body = Readings), Refusals))]
pub(super) async fn stat(
    State(app): State<App>,
    Named(name): Named,
) -> Result<Json<Readings>, Reject> {
    let status = app.container(&name)?.status;
    Ok(Json(Readings {
        devices_effective: status.devices_effective,
        memory_current: status.memory_current,
        memory_peak: status.memory_peak,
        memory_events: status.memory_events,
        memory_events_local: status.memory_events_local,
        stat: status.stat,
        events: status.events,
    }))
}

/// List a container's own members
#[utoipa::path(get, path = "/v1/containers/{name}/procs", tag = "containers",
    params(("name" = Name, Path)), responses((status = 200, body = Items<Process>), Refusals))]
pub(super) async fn procs(
    State(app): State<App>,
    Named(name): Named,
) -> Result<Json<Items<Process>>, Reject> {
    let items = app.container(&name)?.status.procs;
    Ok(Json(Items { items }))
}

/// Add members
#[utoipa::path(put, path = "/v1/containers/{name}/procs", tag = "containers",
    params(("name" = Name, Path)), request_body = NewMembers,
    responses((status = 200, body = Items<Process>), Refusals))]
pub(super) async fn attach(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named,
    Body(body): Body<NewMembers>,
) -> Result<Json<Items<Process>>, Reject> {
    let count = body.pids.len() + body.cgroups.len();
    if !(1..=MEMBERS).contains(&count) {
        let detail = format!("body: {count} members: send 1 to {MEMBERS} \"pids\" or \"cgroups\"");
        return Err(Problem::new(Kind::Invalid, detail).into());
    }
    let cgroups = body
        .cgroups
        .iter()
        .map(|c| c.parse())
        .collect::<Result<Vec<CgroupPath>, _>>()
        .map_err(|e| Problem::new(Kind::Invalid, e.to_string()))?;
    let request = Request::Attach {
        name: name.clone(),
        pids: body.pids,
        cgroups,
    };
    let outcome = app.core.ask(caller, request).await?;
    app.moved(&outcome).await;
    let items = app.container(&name)?.status.procs;
    Ok(Json(Items { items }))
}

/// Take a process out
#[utoipa::path(delete, path = "/v1/containers/{name}/procs/{pid}", tag = "containers",
    params(("name" = Name, Path), ("pid" = u32, Path)), responses((status = 204), Refusals))]
pub(super) async fn detach(
    State(app): State<App>,
    caller: Caller,
    path: Result<Path<(String, u32)>, axum::extract::rejection::PathRejection>,
) -> Result<StatusCode, Reject> {
    let Path((text, pid)) = path?;
    let request = Request::Detach {
        name: name(&text)?,
        pid,
    };
    let outcome = app.core.ask(caller, request).await?;
    app.moved(&outcome).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Create and change many containers together
#[utoipa::path(post, path = "/v1/apply", tag = "containers", params(ApplyQuery),
    request_body = Vec<Declared>, responses((status = 200, body = Applied), Refusals))]
pub(super) async fn apply(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ApplyQuery>,
    Body(body): Body<Vec<Declared>>,
) -> Result<Json<Applied>, Reject> {
    let containers = body
        .into_iter()
        .map(Declared::named)
        .collect::<Result<Vec<_>, _>>()?;
    let request = Request::Apply {
        containers,
        prune: query.prune,
        dry_run: query.dry_run,
    };
    let outcome = app.core.ask(caller, request).await?;
    if !query.dry_run {
        app.in_force(&outcome, query.wait.0).await;
    }
    Ok(Json(Applied {
        changes: outcome.changes,
    }))
}

impl App {
    fn entry(&self, name: &Name) -> Result<Arc<Entry>, Reject> {
        let catalog = self.core.catalog();
        let entry = catalog.entries.get(name).cloned();
        entry.ok_or_else(|| crate::core::missing(name).into())
    }

    fn container(&self, name: &Name) -> Result<Container, Reject> {
        let entry = self.entry(name)?;
        Ok(self.document(&entry))
    }

    fn document(&self, entry: &Entry) -> Container {
        let catalog = self.core.catalog();
        let elsewhere = self.overflow.stats.look(&catalog, &self.admins);
        let elsewhere = self.overflow.of(entry, &elsewhere);
        view::container(entry, &catalog, &self.observed(), &self.proc, elsewhere)
    }

    /// Asks for a change of one container, waits for it as long as is wanted, and gives the
    /// container as it is then, or for a dry run as it would be.
    async fn change(
        &self,
        caller: Caller,
        request: Request,
        wait: Duration,
    ) -> Result<(StatusCode, HeaderMap, Json<Container>), Reject> {
        let dry_run = matches!(
            request,
            Request::Patch { dry_run: true, .. } | Request::Replace { dry_run: true, .. }
        );
        let outcome = self.core.ask(caller, request).await?;
        let entry = outcome
            .touched
            .first()
            .ok_or_else(|| Problem::new(Kind::Unavailable, "the container is gone already"))?;
        if !dry_run {
            self.in_force(&outcome, wait).await;
        }
        let container = self.document(entry);
        let mut headers = etag(container.generation);
        let mut status = StatusCode::OK;
        if outcome.created && !dry_run {
            status = StatusCode::CREATED;
            let path = container.name.as_str().replace('/', "%2F");
            if let Ok(value) = HeaderValue::try_from(format!("/v1/containers/{path}")) {
                headers.insert(header::LOCATION, value);
            }
        }
        Ok((status, headers, Json(container)))
    }

    /// Waits until members are where a request put them; that takes one turn of the loop.
    async fn moved(&self, outcome: &Outcome) {
        let mut observed = self.observed.clone();
        let moved = observed.wait_for(|now| now.revision >= outcome.revision);
        // A loop that is slower than this shows old members for a while.
        let _ = tokio::time::timeout(Duration::from_secs(1), moved).await;
    }

    /// Waits until all that a request touched is in force, or `wait` is over.
    async fn in_force(&self, outcome: &Outcome, wait: Duration) {
        if wait.is_zero() {
            return;
        }
        let mut observed = self.observed.clone();
        let all = observed.wait_for(|now| {
            let is = |e: &Arc<Entry>| {
                let generation = now.in_force.get(&e.uid);
                generation.is_some_and(|g| *g >= e.generation)
            };
            outcome.touched.iter().all(is)
        });
        // `observed_generation` tells the caller which of the two it was.
        let _ = tokio::time::timeout(wait, all).await;
    }
}

fn etag(generation: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::try_from(format!("\"{generation}\"")) {
        headers.insert(header::ETAG, value);
    }
    headers
}
