"""The command line for people: what a change would do, where a rollout is, and verbs on it.

Talks to the cluster through kubectl, so that contexts, logins and proxies are those of the user. Also installed as
`kubectl-forebay`, which makes it a kubectl plugin.
"""
