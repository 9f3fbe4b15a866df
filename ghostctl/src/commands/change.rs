//! `create`, `limit`, `attach`, `revert`, `freeze`, `thaw`, `delete`.

use super::read::index;
use super::read_file;
use crate::assign::{self, Assignment};
use crate::cli::{Attach, Create, Delete, Limit, Limits, Verb, Wait};
use crate::client::{Client, Target, typed};
use crate::error::Error;
use crate::output::{self, human};
use ghost_model::report::Container;
use ghost_model::value::CgroupPath;
use ghost_model::{GpuId, GpuInfo, Key, Kind, Name, Problem, Spec, Value};
use hyper::Method;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) async fn create(client: &Client, args: Create) -> Result<(), Error> {
    let mut spec = Spec::default();
    let mut labels = BTreeMap::new();
    if let Some(path) = &args.file {
        let shown = path.display();
        let mut all = ghost_model::config::parse(&read_file(path)?).map_err(|p| p.of(shown))?;
        let declared = all.remove(&args.name).ok_or_else(|| {
            Problem::new(
                Kind::NotFound,
                format!(
                    "{} has no table [container.{:?}]",
                    path.display(),
                    args.name.as_str()
                ),
            )
        })?;
        (spec, labels) = (declared.spec, declared.labels);
    }
    for (key, value) in assign::parse(&args.settings).map_err(|p| p.of(&args.name))? {
        match value {
            Some(value) => spec.set(key, None, value)?,
            None => {
                spec.unset(key, None);
            }
        }
    }
    let name = &args.name;
    args.limits.lay_on(&mut spec).map_err(|p| p.of(name))?;
    labels.extend(args.labels);
    let container = make(client, &args.name, &spec, &labels).await?;
    output::line(format!(
        "{}: created (generation {})",
        container.name, container.generation
    ))?;
    notes(&container);
    Ok(())
}

/// Makes a container.
async fn make(
    client: &Client,
    name: &Name,
    spec: &Spec,
    labels: &BTreeMap<String, String>,
) -> Result<Container, Error> {
    let body = json!({ "name": name, "spec": Json::from(spec.clone()), "labels": labels });
    let target = Target::new("/v1/containers");
    let answer = client
        .call(Method::POST, target, Some(&body), Duration::ZERO)
        .await?;
    typed("POST /v1/containers", answer)
}

/// Makes a container for `run` if it is not there, with `limits`; changes it to them if it is.
/// Says whether it was made.
pub(super) async fn ensure(client: &Client, name: &Name, limits: &Limits) -> Result<bool, Error> {
    let mut spec = Spec::default();
    limits.lay_on(&mut spec).map_err(|p| p.of(name))?;
    match client.get(Target::container(name, "")).await {
        Ok(_) if !limits.given() => Ok(false),
        Ok(_) => {
            patch(client, name, &json!(spec), &[], Duration::ZERO).await?;
            Ok(false)
        }
        Err(Error::Problem(p)) if p.kind == Kind::NotFound => {
            match make(client, name, &spec, &BTreeMap::new()).await {
                // Somebody was quicker; the container is there, which was wanted.
                Err(Error::Problem(p)) if p.kind == Kind::Exists && !limits.given() => Ok(false),
                made => made.map(|_| true),
            }
        }
        Err(e) => Err(e),
    }
}

/// Changes a spec by a JSON merge patch.
async fn patch(
    client: &Client,
    name: &Name,
    spec: &Json,
    flags: &[(&str, bool)],
    wait: Duration,
) -> Result<Container, Error> {
    let mut target = Target::container(name, "");
    for (key, on) in flags {
        target = target.flag(key, *on);
    }
    if !wait.is_zero() {
        target = target.with("wait", &format!("{}ms", wait.as_millis()));
    }
    let body = json!({ "spec": spec });
    let answer = client
        .call(Method::PATCH, target, Some(&body), wait)
        .await?;
    typed("PATCH /v1/containers", answer)
}

pub(super) async fn limit(client: &Client, args: Limit) -> Result<(), Error> {
    let changes = assign::parse(&args.settings).map_err(|p| p.of(&args.name))?;
    let before = client.container(&args.name).await?;
    let (gpus, gpu) = match &args.gpu {
        Some(gpu) => {
            let gpus = client.gpus().await?;
            let gpu = gpu
                .resolve(&gpus)
                .map_err(|e| Problem::new(Kind::NotFound, e.to_string()))?;
            (gpus, Some(gpu))
        }
        None => (Vec::new(), None),
    };
    let spec = assign::patch(&changes, gpu.as_ref());
    let flags = [("dry_run", args.dry_run), ("runtime", args.runtime)];
    let wait = args.wait.unwrap_or_default();
    let after = patch(client, &before.name, &spec, &flags, wait).await?;
    let how = if args.dry_run {
        "dry run".to_owned()
    } else {
        format!("generation {}", after.generation)
    };
    for line in difference(&changes, gpu.as_ref(), &gpus, &before, &after) {
        output::line(format!("{line} ({how})"))?;
    }
    notes(&after);
    in_force(&after, args.wait.filter(|_| !args.dry_run))
}

/// `trainer: gpu.memory.max 24G -> 8G on GPU 0`, a line for each change.
fn difference(
    changes: &[Assignment],
    gpu: Option<&GpuId>,
    gpus: &[GpuInfo],
    before: &Container,
    after: &Container,
) -> Vec<String> {
    let value = |c: &Container, key: Key| {
        let value = c.spec.effective(key, gpu);
        value.as_ref().map_or("none".to_owned(), human)
    };
    let on = gpu.map_or(String::new(), |g| format!(" on GPU {}", index(g, gpus)));
    changes
        .iter()
        .map(|(key, _)| {
            let (old, new) = (value(before, *key), value(after, *key));
            if old == new {
                format!("{}: {key} stays {new}{on}", after.name)
            } else {
                format!("{}: {key} {old} -> {new}{on}", after.name)
            }
        })
        .collect()
}

fn notes(container: &Container) {
    container.status.notes.iter().for_each(output::note);
}

/// After `--wait`, whether it has taken effect.
fn in_force(c: &Container, wait: Option<Duration>) -> Result<(), Error> {
    match wait {
        Some(after) if c.status.observed_generation < c.generation => Err(Error::TimedOut {
            name: c.name.to_string(),
            after,
        }),
        _ => Ok(()),
    }
}

pub(super) async fn freeze(client: &Client, args: Wait, on: bool) -> Result<(), Error> {
    let name = client.container(&args.name).await?.name;
    let spec = json!({ Key::Freeze.as_str(): Value::Flag(on).to_json() });
    let after = patch(client, &name, &spec, &[], args.wait.unwrap_or_default()).await?;
    let done = if on { "frozen" } else { "thawed" };
    output::line(format!("{name}: {done} (generation {})", after.generation))?;
    notes(&after);
    in_force(&after, args.wait)
}

pub(super) async fn attach(client: &Client, args: Attach) -> Result<(), Error> {
    let name = client.container(&args.name).await?.name;
    let (body, what) = match &args.cgroup {
        Some(path) => {
            let path: CgroupPath = path
                .parse()
                .map_err(|e| Problem::field(Kind::Invalid, Key::Cgroup, e))?;
            (
                json!({ "cgroups": [path.as_str()] }),
                format!("cgroup {}", path.as_str()),
            )
        }
        None => {
            let pids: Vec<String> = args.pids.iter().map(u32::to_string).collect();
            let s = if pids.len() == 1 { "" } else { "s" };
            (
                json!({ "pids": args.pids }),
                format!(
                    "process{} {}",
                    if s.is_empty() { "" } else { "es" },
                    pids.join(", ")
                ),
            )
        }
    };
    put_members(client, &name, &body).await?;
    output::line(format!("{name}: attached {what}"))
}

/// Adds members.
pub(super) async fn put_members(client: &Client, name: &Name, body: &Json) -> Result<(), Error> {
    let target = Target::container(name, "/procs");
    client
        .call(Method::PUT, target, Some(body), Duration::ZERO)
        .await
        .map(drop)
}

pub(super) async fn revert(client: &Client, args: Verb) -> Result<(), Error> {
    let before = client.container(&args.name).await?;
    let target = Target::container(&before.name, "/revert");
    let answer = client
        .call(Method::POST, target, None, Duration::ZERO)
        .await?;
    let after: Container = typed("POST revert", answer)?;
    let what = if after.spec == before.spec {
        "had no overrides"
    } else {
        "overrides dropped"
    };
    output::line(format!(
        "{}: {what} (generation {})",
        after.name, after.generation
    ))?;
    notes(&after);
    Ok(())
}

pub(super) async fn delete(client: &Client, args: Delete) -> Result<(), Error> {
    remove(client, &args.name, args.force).await?;
    output::line(format!("{}: deleted", args.name))
}

/// Deletes a container.
pub(super) async fn remove(client: &Client, name: &Name, force: bool) -> Result<(), Error> {
    let target = Target::container(name, "").flag("force", force);
    client
        .call(Method::DELETE, target, None, Duration::ZERO)
        .await
        .map(drop)
}
