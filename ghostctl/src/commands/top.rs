//! `top`: who uses the GPUs, again and again.

use super::read::{index, state};
use crate::cli::Top;
use crate::client::{Client, typed};
use crate::error::{Error, printable};
use crate::output::{self, Format, Screen, Table, percent};
use crate::share;
use ghost_model::report::Container;
use ghost_model::{Bytes, GpuInfo};
use serde_json::{Value as Json, json};
use std::cmp::Reverse;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::MissedTickBehavior;

const COLUMNS: &[&str] = &[
    "name",
    "gpu",
    "state",
    "weight",
    "wanted",
    "time%",
    "max%",
    "throttled",
    "memory",
];

pub(super) async fn top(client: &Client, args: Top) -> Result<(), Error> {
    let format = args.reading.wanted();
    let columns = columns(&format)?;
    let screen = Screen::here();
    let live = screen.height.is_some();
    let mut ticks = tokio::time::interval(args.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut tables = 0;
    loop {
        ticks.tick().await;
        let documents = client.containers(None).await?;
        if format == Format::Json {
            let at = OffsetDateTime::now_utc().format(&Rfc3339);
            output::print(&format!(
                "{}\n",
                json!({ "at": at.unwrap_or_default(), "items": documents })
            ))?;
        } else {
            let containers: Vec<Container> = typed("/v1/containers", Json::Array(documents))?;
            let gpus = client.gpus().await?;
            let mut table = table(&containers, &gpus, &columns).render(screen);
            if let Some(elsewhere) = elsewhere(&containers) {
                table += &format!("\n{}", elsewhere.render(screen));
            }
            if live {
                output::print(&redraw(
                    &heads(&containers, &gpus),
                    &table,
                    screen,
                    tables == 0,
                ))?;
            } else {
                output::print(&format!("{}{table}", if tables > 0 { "\n" } else { "" }))?;
            }
        }
        tables += 1;
        if args.count == Some(tables) {
            return Ok(());
        }
    }
}

fn columns(format: &Format) -> Result<Vec<String>, Error> {
    let Format::Columns(columns) = format else {
        return Ok(COLUMNS.iter().map(|c| (*c).to_owned()).collect());
    };
    match columns.iter().find(|c| !COLUMNS.contains(&c.as_str())) {
        None => Ok(columns.clone()),
        Some(wrong) => Err(Error::usage(format!(
            "no column {wrong:?}: the columns are {}",
            COLUMNS.join(", ")
        ))),
    }
}

/// A row for each container with processes on each GPU granted to it; on a GPU, who uses most
/// comes first.
fn table(containers: &[Container], gpus: &[GpuInfo], columns: &[String]) -> Table {
    let mut table = Table {
        head: columns.iter().map(|c| c.to_uppercase()).collect(),
        rows: Vec::new(),
    };
    for gpu in gpus {
        let wanted = share::wanted(containers, &gpu.id);
        let ratio = |c: &Container| c.status.stat.get(&gpu.id).and_then(|s| s.usage_ratio);
        let mut here: Vec<&Container> = containers
            .iter()
            .filter(|c| wanted.contains_key(&c.name))
            .collect();
        here.sort_by_key(|c| {
            let used = ratio(c).unwrap_or(0.0);
            (Reverse((used * 1e6) as u64), c.name.clone())
        });
        for c in here {
            let cell = |column: &String| cell(c, gpu, wanted.get(&c.name), gpus, column);
            table.rows.push(columns.iter().map(cell).collect());
        }
    }
    table
}

/// A row for each process whose work is computed on another host than its own.
fn elsewhere(containers: &[Container]) -> Option<Table> {
    let mut table = Table::new(&[
        "NAME", "PEER", "PID", "POSTED", "WAITED", "REFUSED", "UP", "DOWN",
    ]);
    for c in containers {
        for r in &c.status.overflow {
            table.rows.push(vec![
                c.name.to_string(),
                format!(
                    "{}{}",
                    if r.incoming { "of " } else { "" },
                    printable(&r.peer)
                ),
                r.pid.to_string(),
                r.posted.to_string(),
                r.waited.to_string(),
                r.refused.to_string(),
                Bytes(r.bytes_up).human(),
                Bytes(r.bytes_down).human(),
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

fn cell(
    c: &Container,
    gpu: &GpuInfo,
    wanted: Option<&f64>,
    gpus: &[GpuInfo],
    column: &str,
) -> String {
    let none = || "-".to_owned();
    let effective = &c.status.effective;
    let stat = c.status.stat.get(&gpu.id);
    match column {
        "name" => c.name.to_string(),
        "gpu" => index(&gpu.id, gpus),
        "state" => state(c.status.state).to_owned(),
        "weight" if effective.idle() => "idle".into(),
        "weight" => effective.weight(&gpu.id).get().to_string(),
        "wanted" => wanted.map_or_else(none, |s| percent(*s)),
        "time%" => stat.and_then(|s| s.usage_ratio).map_or_else(none, percent),
        "max%" => {
            let budget = effective.budget(&gpu.id);
            budget.max.map_or_else(none, |_| percent(budget.ratio()))
        }
        "throttled" => stat.map_or_else(none, |s| format!("{}/{}", s.nr_throttled, s.nr_periods)),
        _ => {
            let memory = c.status.memory_current.get(&gpu.id);
            memory.map_or_else(none, |m| Bytes::human(*m))
        }
    }
}

/// A line for each GPU: how much of it is used, by all together.
fn heads(containers: &[Container], gpus: &[GpuInfo]) -> Vec<String> {
    gpus.iter()
        .map(|gpu| {
            // A container's numbers include those below it.
            let at_top = |c: &&Container| c.name.parent().is_none();
            let used: Vec<f64> = containers
                .iter()
                .filter(at_top)
                .filter_map(|c| c.status.stat.get(&gpu.id)?.usage_ratio)
                .collect();
            let used = if used.is_empty() {
                "not measured".to_owned()
            } else {
                format!("{} % used", percent(used.iter().sum()))
            };
            let memory = gpu.memory_used.map_or("-".into(), Bytes::human);
            format!(
                "GPU {} {}: {used}, {memory} of {}",
                gpu.index,
                gpu.name,
                gpu.memory_total.human()
            )
        })
        .collect()
}

/// The screen drawn over, line by line, so that it does not flicker.
fn redraw(heads: &[String], table: &str, screen: Screen, first: bool) -> String {
    let height = screen.height.unwrap_or(usize::MAX).saturating_sub(1);
    let mut out = String::from(if first {
        "\u{1b}[2J\u{1b}[H"
    } else {
        "\u{1b}[H"
    });
    let cut = |line: &str| -> String {
        line.chars()
            .take(screen.width.unwrap_or(usize::MAX))
            .collect()
    };
    let heads = heads.iter().map(|h| cut(&printable(h)));
    for line in heads
        .chain(std::iter::once(String::new()))
        .chain(table.lines().map(str::to_owned))
        .take(height)
    {
        out += &line;
        out += "\u{1b}[K\n";
    }
    out + "\u{1b}[J"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redrawing_clears_what_was_there_and_fits() {
        let screen = Screen {
            width: Some(5),
            height: Some(4),
            colour: false,
        };
        assert_eq!(
            redraw(&["GPU 0 long".into()], "A\nB\nC\n", screen, false),
            "\u{1b}[HGPU 0\u{1b}[K\n\u{1b}[K\nA\u{1b}[K\n\u{1b}[J"
        );
    }
}
