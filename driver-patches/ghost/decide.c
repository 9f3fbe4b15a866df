// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * decide.c - who is stopped and which timeslices there are, from weights, budgets and pauses, one GPU
 * at a time, with the arithmetic of ghost_math.h.
 *
 * Under ghost_lock; what is not declared in core.h is called by the thread of time.c alone.
 */
#include <linux/bug.h>

#include "time.h"

static u32 line_paused(const struct ghost_line *line)
{
	return (line->pauses ? GHOST_PAUSED_ASKED : 0) |
	       (line->budget.throttled ? GHOST_PAUSED_MAX : 0);
}

u32 ghost_paused(const struct ghost_node *node, u32 slot)
{
	u32 paused = 0;

	for (; node; node = node->parent) {
		paused |= line_paused(node->lines[slot]);
	}
	return paused;
}

void ghost_budget_settle(struct ghost_line *line, u64 now_us)
{
	/* Where they are not held, they begin anew when they are again. */
	if (ghost_on && !ghost_led())
		ghost_budget_advance(&line->budget, line->running, now_us);
}

/* Nobody held it up to now. */
static void begin_anew(struct ghost_budget *budget, u64 now)
{
	if (!ghost_budget_limits(budget))
		return;
	budget->start_us = now;
	budget->at_us = now;
	budget->level_us = budget->max_us;
	budget->throttled = 0;
	budget->ran = 0;
	budget->ran_out = 0;
}

u64 ghost_decide_pauses(u32 slot, const struct ghost_look *look)
{
	struct ghost_channels *group;
	struct ghost_node *node;
	struct ghost_line *line;
	u64 wake = GHOST_UNLIMITED;

	list_for_each_entry(node, ghost_nodes(), all) {
		line = node->lines[slot];
		node->turn = (struct ghost_turn){ .paused = node->parent ? node->parent->turn.paused : 0 };
		if (look->anew)
			begin_anew(&line->budget, look->now_us);
		if (look->held)
			ghost_budget_advance(&line->budget, line->running, look->now_us);
		WARN_ON_ONCE(IS_ENABLED(GHOST_TEST) && !ghost_budget_is_valid(&line->budget));
		node->turn.paused |= line_paused(line);
	}
	list_for_each_entry(group, ghost_groups(), all) {
		u32 why = look->stops ? group->node->turn.paused : 0;
		bool stop = why;

		if (group->slot != slot)
			continue;
		/* Until the driver lets it run, it is what stopped it. */
		group->why = why ?: group->why;
		if (group->stop != stop) {
			group->stop = stop;
			group->refused &= ~(GHOST_STOP | GHOST_START);
		}
		group->node->turn.running |= !group->stopped;
	}
	list_for_each_entry_reverse(node, ghost_nodes(), all) {
		line = node->lines[slot];
		if (node->parent)
			node->parent->turn.running |= node->turn.running;
		line->running = node->turn.running;
		if (look->held)
			wake = ghost_min(wake, ghost_budget_wake(&line->budget, line->running));
	}
	return wake;
}

/* Divides what `whole` for `weights` gives each at the top, down to the groups. */
static void divide(u64 whole, u64 weights)
{
	struct ghost_node *node, *parent;

	list_for_each_entry(node, ghost_nodes(), all) {
		parent = node->parent;
		if (!node->turn.takes_part)
			continue;
		node->turn.whole = ghost_part(parent ? parent->turn.whole : whole, node->turn.weight,
					      parent ? parent->turn.sum : weights);
		node->turn.own = ghost_part(node->turn.whole,
					    ghost_counts(GHOST_OWN_WEIGHT, false), node->turn.sum);
	}
}

/*
 * The round, as slice per weight: kept where it will do, so that no slice changes where a container
 * at the top comes or goes; what counts is their ratio.
 */
static void choose_round(struct ghost_gpu_slot *gpu, u64 count, u64 least, u64 weights)
{
	u64 best = ghost_round(count, least);
	u64 length = ghost_part(gpu->round_us, weights, gpu->round_weight);

	if (gpu->round_weight && count <= 1)
		return;
	if (length >= best * 2 / 3 && length <= ghost_max(GHOST_ROUND_FEW_US, best * 6 / 5))
		return;
	gpu->round_us = best;
	gpu->round_weight = weights;
}

void ghost_decide_slices(u32 slot)
{
	struct ghost_gpu_slot *gpu = ghost_slot(slot);
	u64 count = 0, least = GHOST_ONE, weights = 0;
	struct ghost_channels *group;
	struct ghost_node *node;
	struct ghost_line *line;

	list_for_each_entry_reverse(node, ghost_nodes(), all) {
		struct ghost_turn *turn = &node->turn;

		line = node->lines[slot];
		if (line->groups) {
			turn->takes_part = true;
			turn->sum += ghost_counts(GHOST_OWN_WEIGHT, false);
		}
		if (!turn->takes_part)
			continue;
		turn->weight = ghost_counts(line->weight, ghost_beyond_high(&line->memory));
		if (node->parent) {
			node->parent->turn.takes_part = true;
			node->parent->turn.sum += turn->weight;
		} else {
			weights += turn->weight;
		}
	}
	if (!weights)
		return;
	divide(GHOST_ONE, weights);
	list_for_each_entry(node, ghost_nodes(), all) {
		line = node->lines[slot];
		if (!line->groups)
			continue;
		count += line->groups;
		least = ghost_min(least, node->turn.own / line->groups);
	}
	choose_round(gpu, count, least, weights);
	divide(gpu->round_us << GHOST_LENGTH_SHIFT, gpu->round_weight);
	list_for_each_entry(node, ghost_nodes(), all) {
		line = node->lines[slot];
		if (line->groups)
			line->slice_us = ghost_slice_of(node->turn.own, GHOST_MILLION, line->groups);
	}
	list_for_each_entry(group, ghost_groups(), all) {
		if (group->slot == slot)
			group->wanted_us = group->node->lines[slot]->slice_us;
	}
}
