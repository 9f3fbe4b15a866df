//! Prints what the stock backend sees: `stock_probe [SECONDS] [--period MS] [--slice PID=US]…
//! [--standin DIR]`. Takes root.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ghost_backend::Backend;
use ghost_backend::Roots;
use ghost_backend::stock::Stock;
use ghost_model::sample::GroupId;
use ghost_model::{Action, Micros, Sample};
use nix::time::{ClockId, clock_gettime};

struct Asked {
    seconds: u64,
    period: Duration,
    slices: BTreeMap<u32, Micros>,
    roots: Roots,
}

fn parse(args: impl Iterator<Item = String>) -> Result<Asked, Box<dyn Error>> {
    let mut asked = Asked {
        seconds: 5,
        period: Duration::from_millis(50),
        slices: BTreeMap::new(),
        roots: Roots::host(),
    };
    let mut args = args.skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} takes a value"));
        match arg.as_str() {
            "--period" => asked.period = Duration::from_millis(value()?.parse()?),
            "--slice" => {
                let pair = value()?;
                let (pid, us) = pair.split_once('=').ok_or("--slice takes PID=US")?;
                asked.slices.insert(pid.parse()?, Micros(us.parse()?));
            }
            "--standin" => {
                let guardian = asked.roots.guardian.clone();
                asked.roots = Roots::standin(PathBuf::from(value()?), guardian);
            }
            seconds => asked.seconds = seconds.parse()?,
        }
    }
    Ok(asked)
}

fn cpu() -> Result<Duration, nix::Error> {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from)
}

/// What each group used between two samples, as a part of the time between its readings.
fn print(before: &Sample, after: &Sample) {
    let mut used = BTreeMap::<GroupId, (Micros, Micros)>::new();
    for group in before.gpus.iter().flat_map(|gpu| &gpu.groups) {
        if let (Some(value), Some(at)) = (group.used.last(), group.used.at()) {
            used.insert(group.id, (value, at));
        }
    }
    for gpu in &after.gpus {
        println!("  {}", gpu.gpu);
        for group in &gpu.groups {
            let share = used.get(&group.id).and_then(|&(value, at)| {
                let (now, now_at) = (group.used.last()?, group.used.at()?);
                let span = now_at.since(at).0;
                (span > 0).then(|| now.since(value).0 as f64 / span as f64)
            });
            println!(
                "    group {} pid {} {} share {} used {:?} active {:?} slice {:?}{}",
                group.id.0,
                group.pid,
                group.container,
                share.map_or("-".to_owned(), |share| format!("{share:.4}")),
                group.used,
                group.active,
                group.slice,
                if group.paused { " paused" } else { "" },
            );
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let asked = parse(std::env::args())?;
    let begun = Instant::now();
    let mut stock = Stock::open(asked.roots)?;
    println!("opened in {:?}", begun.elapsed());
    for gpu in stock.gpus() {
        println!("{gpu:?}");
    }
    println!("{:#?}", stock.capabilities());
    stock.upkeep();
    stock.upkeep();
    let mut last = stock.sample();
    println!("first sample after {:?}", begun.elapsed());
    let mut walls = Vec::new();
    for second in 1..=asked.seconds {
        let (start, spent) = (Instant::now(), cpu()?);
        walls.clear();
        let mut sample = last.clone();
        while start.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(asked.period);
            let at = Instant::now();
            stock.upkeep();
            sample = stock.sample();
            let groups = sample
                .gpus
                .iter()
                .flat_map(|g| g.groups.iter().map(move |x| (g, x)));
            let actions = groups.filter_map(|(gpu, group)| {
                let slice = *asked.slices.get(&group.pid)?;
                let (gpu, group) = (gpu.gpu.clone(), group.id);
                Some(Action::SetSlice { gpu, group, slice })
            });
            for failure in stock.apply(&actions.collect::<Vec<_>>()) {
                println!("  {failure}");
            }
            stock.upkeep();
            walls.push(at.elapsed());
        }
        let cpu = (cpu()? - spent).as_secs_f64() / start.elapsed().as_secs_f64();
        let total: Duration = walls.iter().sum();
        println!(
            "second {second}: {} samples, {:?} each, {:?} at most, {:.2} % of a core",
            walls.len(),
            total / walls.len().max(1) as u32,
            walls.iter().max().copied().unwrap_or_default(),
            cpu * 100.0,
        );
        print(&last, &sample);
        for event in stock.events() {
            println!("  {event:?}");
        }
        last = sample;
    }
    for process in stock.processes() {
        println!("{process:?}");
    }
    println!("{:?}", stock.capabilities().notes);
    println!("timeslices set back: {}", stock.reasserted());
    Ok(())
}
