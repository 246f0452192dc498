"""Statements of a plan for sites to read, and their signed approvals.

It imports `plans.federated`, `audit` and `plans`.  plan.json (`plan_statement`) has every key that all sites share,
hashes of common files and modules, the model's layout, and the text of the terms; its sha256 identifies the plan.  It
excludes agreed statistics, a site's choices for its machine, and projections of tensors.

A site's approvals are an audit log next to its key (`site_approvals`: approved, revoked, used, agreed, refused).  Each
command that starts a participant with records (one `Gate`) makes the statement again and checks that log: plan, roster,
coordinator, versions, the seal of the records, day, and rounds over all runs, counted before the first job
(`Ports.first_work`).

A run's folder has plan.json and approval.jsonl with the site's signed line, which anybody can verify
(`approvals.read_signed`).  A participant that joins by an invite checks the same log before Enrol, and again at the
start: with the organiser's key from the invite, and without a participant number (`JOINING`) or roster.
"""
