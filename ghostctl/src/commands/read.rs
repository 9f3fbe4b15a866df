//! `list`, `status`, `show`, `get`, `cat`.

use crate::cli::{Get, List, One};
use crate::client::{Client, Target, typed};
use crate::error::{Error, printable};
use crate::keys::{self, Shown};
use crate::output::{self, Format, Screen, Table, human, percent, size};
use ghost_model::key::Mode;
use ghost_model::report::{Container, Node, Process, Remote, Source, Stat, State};
use ghost_model::{Bytes, GpuId, GpuInfo, Key, Kind, Problem};
use serde_json::{Value as Json, json};

/// Columns of `list`, in order.
const COLUMNS: &[&str] = &[
    "name", "state", "gpu", "weight", "time%", "max%", "memory", "high", "max", "enforced",
];

pub(super) async fn list(client: &Client, args: List) -> Result<(), Error> {
    let label = args.label.map(|(k, v)| format!("{k}={v}"));
    let documents = client.containers(label.as_deref()).await?;
    let format = args.reading.wanted();
    if format == Format::Json {
        return output::document(&json!({ "items": documents }));
    }
    let containers: Vec<Container> = typed("/v1/containers", Json::Array(documents))?;
    if args.quiet {
        return containers
            .iter()
            .try_for_each(|c| output::line(c.name.as_str()));
    }
    let gpus = client.gpus().await?;
    let columns: Vec<String> = match format {
        Format::Columns(columns) => columns,
        _ => COLUMNS.iter().map(|c| (*c).to_owned()).collect(),
    };
    output::print(&table(&containers, &gpus, &columns)?.render(Screen::here()))
}

/// The table of `list`.
fn table(containers: &[Container], gpus: &[GpuInfo], columns: &[String]) -> Result<Table, Error> {
    let mut table = Table::default();
    for column in columns {
        if !COLUMNS.contains(&column.as_str()) && column.parse::<Key>().is_err() {
            return Err(Error::usage(format!(
                "no column {column:?}: the columns are {} and every key of ghost(7)",
                COLUMNS.join(", ")
            )));
        }
        // A key is written as it is typed; a column shouts.
        table.head.push(match column.parse::<Key>() {
            Ok(key) => key.to_string(),
            Err(_) => column.to_uppercase(),
        });
    }
    for c in containers {
        table
            .rows
            .push(columns.iter().map(|column| cell(c, gpus, column)).collect());
    }
    Ok(table)
}

fn cell(c: &Container, gpus: &[GpuInfo], column: &str) -> String {
    let none = || "-".to_owned();
    let status = &c.status;
    let largest = |key| {
        let all = status.devices_effective.iter();
        all.filter_map(|g| status.effective.memory(key, g))
            .max()
            .map_or_else(none, Bytes::human)
    };
    match column {
        "name" => c.name.to_string(),
        "state" => state(status.state).to_owned(),
        "gpu" => {
            let all: Vec<String> = status
                .devices_effective
                .iter()
                .map(|g| index(g, gpus))
                .collect();
            if all.is_empty() {
                none()
            } else {
                all.join(",")
            }
        }
        "weight" if status.effective.idle() => "idle".into(),
        "weight" => keys::shown(c, Key::Weight, None).map_or_else(none, |s| match s {
            // One GPU differs; `get` says which.
            Shown::Keyed(pairs) => pairs.first().map_or_else(none, |(_, v)| format!("{v}*")),
            other => other.cell(),
        }),
        "time%" => busiest(c).map_or_else(none, percent),
        "max%" => {
            let ratios = status.devices_effective.iter().map(|g| {
                let budget = status.effective.budget(g);
                budget.max.map_or(1.0, |_| budget.ratio())
            });
            let most = ratios.fold(0.0, f64::max);
            if most > 0.0 && most < 1.0 {
                percent(most)
            } else {
                none()
            }
        }
        "memory" => {
            let all: Vec<u64> = status.memory_current.values().map(|n| n.0).collect();
            if all.is_empty() {
                none()
            } else {
                Bytes(all.iter().sum()).human()
            }
        }
        "high" => largest(Key::MemoryHigh),
        "max" => largest(Key::MemoryMax),
        "enforced" => {
            let mut by: Vec<String> = status
                .effective
                .iter()
                .filter(|(k, _, v)| ghost_model::Value::default_of(*k).as_ref() != Some(v))
                .filter_map(|(k, _, _)| status.enforced_by.get(&k))
                .chain(status.enforced_by.get(&Key::Weight))
                .map(ToString::to_string)
                .collect();
            by.sort();
            by.dedup();
            by.join(",")
        }
        key => key
            .parse()
            .ok()
            .and_then(|key| keys::shown(c, key, None))
            .map_or_else(none, |s| s.cell()),
    }
}

/// The part of the GPU that it uses most, where it is measured.
fn busiest(c: &Container) -> Option<f64> {
    let all = c.status.stat.values();
    all.filter_map(|s| s.usage_ratio).reduce(f64::max)
}

/// A state as typed.
pub(super) fn state(state: State) -> &'static str {
    match state {
        State::Empty => "empty",
        State::Idle => "idle",
        State::Running => "running",
        State::Throttled => "throttled",
        State::Frozen => "frozen",
    }
}

/// The index of a GPU, or its UUID if it is not among `gpus`.
pub(super) fn index(gpu: &GpuId, gpus: &[GpuInfo]) -> String {
    gpus.iter()
        .find(|g| g.id == *gpu)
        .map_or_else(|| gpu.to_string(), |g| g.index.to_string())
}

pub(super) async fn status(client: &Client, args: One) -> Result<(), Error> {
    let document = client.find(&args.name).await?;
    if args.reading.json()? {
        return output::document(&document);
    }
    let container: Container = typed("/v1/containers", document)?;
    let gpus = client.gpus().await?;
    output::print(&page(&container, &gpus))
}

/// The page of `status`.
fn page(c: &Container, gpus: &[GpuInfo]) -> String {
    let status = &c.status;
    let mut table = Table::headless(2);
    let mut row = |name: &str, value: String| {
        table.rows.push(vec![format!("  {name}"), value]);
    };
    let force = if status.observed_generation >= c.generation {
        "in force".to_owned()
    } else {
        format!("generation {} is in force", status.observed_generation)
    };
    row("generation", format!("{} ({force})", c.generation));
    if c.owner != 0 {
        row("owner", format!("uid {}", c.owner));
    }
    for (k, v) in &c.labels {
        row("label", format!("{k}={v}"));
    }
    for gpu in &status.devices_effective {
        row("gpu", format!("{} {gpu}", index(gpu, gpus)));
    }
    for (key, gpu, value) in status.effective.iter() {
        if c.spec.get(key, gpu).is_none() && key != Key::Weight {
            continue;
        }
        let on = gpu.map_or(String::new(), |g| format!(" on GPU {}", index(g, gpus)));
        let by = status.enforced_by.get(&key);
        let by = by.map_or(String::new(), |by| format!(", enforced by {by}"));
        row(key.as_str(), format!("{}{on}{by}", human(value)));
    }
    for (gpu, stat) in &status.stat {
        row("time", format!("GPU {}: {}", index(gpu, gpus), time(stat)));
    }
    for (gpu, bytes) in &status.memory_current {
        let peak = status.memory_peak.get(gpu);
        let peak = peak.map_or(String::new(), |p| format!(", peak {}", size(*p)));
        row(
            "memory",
            format!("GPU {}: {}{peak}", index(gpu, gpus), size(*bytes)),
        );
    }
    for p in &status.procs {
        row("process", process(p, gpus));
    }
    for r in &status.overflow {
        row("overflow", elsewhere(r));
    }
    if status.slices_reasserted > 0 {
        row(
            "reasserted",
            format!(
                "{} timeslices that a process changed were set back",
                status.slices_reasserted
            ),
        );
    }
    let mut out = format!("{}: {}\n", c.name, state(status.state));
    out += &table.render(Screen::PIPE);
    for note in &status.notes {
        out += &format!("note: {}\n", printable(note));
    }
    out
}

fn time(stat: &Stat) -> String {
    let now = stat
        .usage_ratio
        .map_or("not measured".to_owned(), |r| format!("{} %", percent(r)));
    let used = format!("{now}, {:.1} s in all", stat.usage_usec.as_secs_f64());
    if stat.nr_throttled == 0 {
        return used;
    }
    format!(
        "{used}, throttled in {} of {} periods for {:.1} s",
        stat.nr_throttled,
        stat.nr_periods,
        stat.throttled_usec.as_secs_f64()
    )
}

/// One process whose work is computed on another host than its own, in a line.
fn elsewhere(r: &Remote) -> String {
    let refused = match r.refused {
        0 => String::new(),
        n => format!(", {n} refused"),
    };
    format!(
        "{} {} {}: {} calls posted, {} waited for{refused}, {} up, {} down",
        r.pid,
        if r.incoming { "of" } else { "on" },
        printable(&r.peer),
        r.posted,
        r.waited,
        size(Bytes(r.bytes_up)),
        size(Bytes(r.bytes_down))
    )
}

/// One process in a line.
pub(super) fn process(p: &Process, gpus: &[GpuInfo]) -> String {
    let mut out = format!("{} {}", p.pid, p.command);
    for (gpu, groups) in &p.groups {
        let memory = p.memory.get(gpu).map(|m| format!(", {}", size(*m)));
        let s = if *groups == 1 { "" } else { "s" };
        out += &format!(
            ", GPU {}: {groups} channel group{s}{}",
            index(gpu, gpus),
            memory.unwrap_or_default()
        );
    }
    if let Some(why) = &p.refused {
        out += &format!(", not held: {why}");
    }
    out
}

pub(super) async fn show(client: &Client, args: One) -> Result<(), Error> {
    let document = client.find(&args.name).await?;
    let format = args.reading.wanted();
    if format == Format::Json {
        return output::document(&document);
    }
    let c: Container = typed("/v1/containers", document)?;
    let mut lines = vec![
        format!("name={}", c.name),
        format!("uid={}", c.uid),
        format!("generation={}", c.generation),
        format!("owner={}", c.owner),
        format!("observed_generation={}", c.status.observed_generation),
        format!("state={}", state(c.status.state)),
    ];
    lines.extend(c.labels.iter().map(|(k, v)| format!("label.{k}={v}")));
    for key in Key::ALL {
        if let Some(shown) = keys::shown(&c, *key, None) {
            lines.extend(shown.assignments(*key));
        }
    }
    if let Format::Columns(wanted) = format {
        for key in &wanted {
            let is = |l: &String| name_of(l) == key;
            if !lines.iter().any(is) {
                key.parse::<Key>().map_err(Problem::from)?;
            }
        }
        lines.retain(|l| wanted.iter().any(|w| w == name_of(l)));
    }
    lines.iter().try_for_each(output::line)
}

/// `gpu.weight` of `gpu.weight[GPU-…]=5`.
fn name_of(line: &str) -> &str {
    let end = line.find(['=', '[']).unwrap_or(line.len());
    &line[..end]
}

pub(super) async fn get(client: &Client, args: Get) -> Result<(), Error> {
    let key: Key = args.key.parse().map_err(Problem::from)?;
    let document = client.find(&args.name).await?;
    let gpu = match &args.gpu {
        Some(gpu) => Some(client.gpu(gpu).await?),
        None => None,
    };
    let c: Container = typed("/v1/containers", document.clone())?;
    let shown = keys::shown(&c, key, gpu.as_ref());
    if shown.is_none() && key.mode() == Mode::ReadOnly {
        let node: Node = client.read(Target::new("/v1/node")).await?;
        return Err(unsupported(&c, key, &node).into());
    }
    if args.reading.json()? {
        return output::document(&keys::json(&document, key, gpu.as_ref()));
    }
    match shown.map(|s| s.file()).filter(|text| !text.is_empty()) {
        Some(text) => output::print(&format!("{text}\n")),
        None => Ok(()),
    }
}

fn unsupported(c: &Container, key: Key, node: &Node) -> Problem {
    let held = &node.capabilities;
    let driver = held.driver.as_ref().map(|driver| {
        let patch = held.patch.as_ref();
        let patch = patch.map_or("unpatched".to_owned(), |p| format!("patch {p}"));
        format!(" (driver {driver}, {patch})")
    });
    Problem::new(
        Kind::Unsupported,
        format!(
            "{key} on {:?}: not supported by backend {:?}{}",
            c.name.as_str(),
            held.backend.to_string(),
            driver.unwrap_or_default()
        ),
    )
    .hint("`ghostctl info` shows what this node enforces, key by key")
}

pub(super) async fn cat(client: &Client, args: One) -> Result<(), Error> {
    let c = client.container(&args.name).await?;
    let document = client.get(Target::container(&c.name, "/sources")).await?;
    if args.reading.json()? {
        return output::document(&document);
    }
    let list = match document {
        Json::Object(mut page) => page.remove("items").unwrap_or_default(),
        list => list,
    };
    let mut sources: Vec<Source> = typed("/v1/containers", list)?;
    sources.sort_by(|a, b| a.origin.cmp(&b.origin));
    let mut origin = None;
    for s in &sources {
        if origin.as_ref() != Some(&s.origin) {
            output::line(format!("# {}", s.origin))?;
            origin = Some(s.origin.clone());
        }
        let device = s.gpu.as_ref().map(|g| format!("device.{:?}.", g.as_str()));
        output::line(format!(
            "{}{} = {:?}",
            device.unwrap_or_default(),
            s.key,
            s.value
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_line() {
        assert_eq!(name_of("gpu.weight[GPU-aaaa]=5"), "gpu.weight");
        assert_eq!(name_of("gpu.latency=target=5"), "gpu.latency");
    }
}
