package config

import (
	"maps"
	"slices"
)

// Key is a key of the file. The manual page and docs/CONFIG.md show its texts.
type Key struct {
	Table   string // name of the table; empty: the key is in no table
	Name    string
	Kind    string // kind of the value, for people
	Default string // empty: there is no default, or it is an empty list
	Text    string // what the key does
	set     setter
}

// Header returns a table's header in the file, or an empty text for no table.
func Header(table string) string {
	if _, several := arrays[table]; several {
		return "[[" + table + "]]"
	}
	if table == "" {
		return ""
	}
	return "[" + table + "]"
}

// setter stores the value of a key in a Config, or returns the errors of the value.
type setter func(*Config, value) []Error

// Keys returns all keys of the file, each table's together.
func Keys() []Key { return keys }

var keys = []Key{
	{
		"", "run_dir", "directory", DefaultRunDir,
		"State of running containers, and the sockets of the agent and of these containers.",
		text(func(c *Config) *string { return &c.RunDir }, absolute),
	},
	{
		"", "state_dir", "directory", DefaultStateDir,
		"Data that the next agent needs.",
		text(func(c *Config) *string { return &c.StateDir }, absolute),
	},
	{"log", "level", "debug, info, warn or error", "info", "Minimum level to log.", logLevel},
	{
		"log", "format", "text or json", "text",
		"Format of a line of the log.",
		text(func(c *Config) *string { return &c.Log.Format }, oneOf("text", "json")),
	},
	{
		"metrics", "listen", "ADDR:PORT", "",
		"Address of the HTTP server for Prometheus metrics. Everybody who can reach the address can read them. Without this key there is no server.",
		text(func(c *Config) *string { return &c.Metrics.Listen }, addrPort),
	},
	{
		"runtime", "path", "file", "",
		"OCI runtime that tsugiki-runtime calls to make containers. Without this key it calls runc or crun, the first one in PATH.",
		text(func(c *Config) *string { return &c.Runtime.Path }, absolute),
	},
	{
		"charge", "enabled", "true or false", "true",
		"Subtract CPU time that other processes spend for a container from the container's CPU quota.",
		flag(func(c *Config) *bool { return &c.Charge.Enabled }),
	},
	{
		"charge", "placement", "true or false", "true",
		"Move processes that work for one container under its quota, where the cgroups permit this. The kernel then charges them exactly. Without it, the agent lowers quotas.",
		flag(func(c *Config) *bool { return &c.Charge.Placement }),
	},
	{
		"charge", "burst", "true or false", "false",
		"Allow debt-free containers to save up to one period of unused quota (cfs_burst). While this is on, lowering the quota of such a container (docker update --cpus) fails, unless let-go of the API came before.",
		flag(func(c *Config) *bool { return &c.Charge.Burst }),
	},
	{
		"charge", "discovery", "true or false", "true",
		"Find containers, and the shims, loggers and conmons that work for them.",
		flag(func(c *Config) *bool { return &c.Charge.Discovery }),
	},
	{
		"charge", "within", "path", "",
		"Path of a cgroup in the hierarchy of the cpu controller, such as /docker or /kubepods.slice. The agent finds containers only in or below this cgroup. Without this key, it finds them in all cgroups.",
		text(func(c *Config) *string { return &c.Charge.Within }, absolute),
	},
	{
		"charge", "softirq", "true or false", "false",
		"Charge the receiving of packets. This costs some tenths of a microsecond for each packet of the machine.",
		flag(func(c *Config) *bool { return &c.Charge.Softirq }),
	},
	{
		"charge", "shared", "list", "",
		"Names of programs that work for many containers, such as dockerd. The agent divides their CPU time by the files of containers that they read and write. While such a program serves a container that has a quota, this costs some tens of nanoseconds for each system call of the machine.",
		texts(func(c *Config) *[]Text { return &c.Charge.Shared }),
	},
	{
		"kubernetes", "grants", "true or false", "false",
		"Give containers of Kubernetes' pods what tsugiki-kube grants them, and nothing else: the agent hears neither their annotations nor [[container]]. Containers wait for the grant of their pod before they start.",
		flag(func(c *Config) *bool { return &c.Kubernetes.Grants }),
	},
	{
		"allow", "engines", "list", "",
		"Engines of the containers: docker, podman, containerd, nerdctl, cri (Kubernetes), or other, for an unknown engine. Required.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Engines }, oneOf(Engines()...)),
	},
	{
		"allow", "names", "list", "",
		"Patterns of the names of the containers, as match of [[container]]. The name is the engine's name of the container, with Kubernetes NAMESPACE.POD.CONTAINER. Required.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Names }, pattern),
	},
	{
		"allow", "annotations", "list", "",
		"Annotations that the agent follows: dns, egress, endpoints, ftp, ingress, ipv6, mode, name, name-rules, sip and translate. Without this key, it follows none.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Annotations }, oneOf(AnnotationKeys()...)),
	},
	{
		"allow", "unknown_origin", "true or false", "false",
		"Follow annotations also if the agent cannot find out whether they come from the image or from the user who starts the container.",
		flag(func(c *Config) *bool { return &lastAllow(c).UnknownOrigin }),
	},
	{
		"allow", "destinations", "list", "",
		"Prefixes of destinations for egress rules. The prefix of a rule must lie within one of them.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Destinations }, nonEmpty),
	},
	{
		"allow", "special", "list", "",
		"Special addresses that rules may name, as destinations and as addresses of the host: broadcast, link-local, loopback, multicast and unspecified. The prefixes of the other keys do not cover them.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Special }, oneOf(SpecialKinds()...)),
	},
	{
		"allow", "addresses", "list", "",
		"Prefixes of the host's addresses that rules and endpoints may use. 0.0.0.0/32 and ::/128 permit that the host chooses the address.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Addresses }, nonEmpty),
	},
	{
		"allow", "ports", "list", "1024-65535",
		"Ports of the host, each PORT or FIRST-LAST, that ingress rules and endpoints may use.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Ports }, nonEmpty),
	},
	{
		"allow", "types", "list", "ipv4, ipv6",
		"Types of endpoints that are permitted: ipv4, ipv6 and unix.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Types }, oneOf("ipv4", "ipv6", "unix")),
	},
	{
		"allow", "nameable", "true or false", "false",
		"Permit endpoints that programs name themselves. Through such an endpoint, a program can connect to every destination that is not special.",
		flag(func(c *Config) *bool { return &lastAllow(c).Nameable }),
	},
	{
		"allow", "netns", "list", "",
		"Network namespaces of endpoints: patterns of names of ip-netns(8), or of paths.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Netns }, pattern),
	},
	{
		"allow", "paths", "list", "",
		"Paths of unix endpoints: patterns, or folders with a slash at the end for all paths below them. No part of a path may be a symbolic link.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Paths }, pathPattern),
	},
	{
		"allow", "resolvers", "list", "",
		"Resolvers, each ADDR:PORT, that the agent may ask for the names of a container whose IPv4 is translated. It may always ask those of its own /etc/resolv.conf.",
		checked(func(c *Config) *[]Text { return &lastAllow(c).Resolvers }, nonEmpty),
	},
	{
		"container", "match", "pattern", "",
		"Pattern of the names of the containers: * matches any characters, ? one character, [a-z] one of these. Required.",
		text(func(c *Config) *string { return &last(c).Match }, pattern),
	},
	{
		"container", "mode", "auto, preload or seccomp", "auto",
		"Interception of socket calls, as --mode of tsugiki run.",
		text(func(c *Config) *string { return &last(c).Mode }, oneOf("auto", "preload", "seccomp")),
	},
	{
		"container", "endpoints", "list", "",
		"Definitions of endpoints, each as --endpoint of tsugiki run.",
		texts(func(c *Config) *[]Text { return &last(c).Endpoints }),
	},
	{
		"container", "ingress", "list", "",
		"Rules for sockets that programs bind, each as -i of tsugiki run.",
		texts(func(c *Config) *[]Text { return &last(c).Ingress }),
	},
	{
		"container", "egress", "list", "",
		"Rules for sockets that programs connect, each as -e of tsugiki run.",
		texts(func(c *Config) *[]Text { return &last(c).Egress }),
	},
	{
		"container", "name_rules", "list", "",
		"With translate: rules for hosts by their names, each as --name-rule of tsugiki run.",
		texts(func(c *Config) *[]Text { return &last(c).NameRules }),
	},
	{
		"container", "translate", "true or false", "false",
		"Translate IPv4 for programs that know IPv4 only, as --translate of tsugiki run. The container may have no network but a loopback.",
		flag(func(c *Config) *bool { return &last(c).Translate }),
	},
	{
		"container", "ipv6", "ADDR", "",
		"With translate, and without egress rules: the host's address from which programs connect, as --ipv6 of tsugiki run. Without this key the host chooses it.",
		text(func(c *Config) *string { return &last(c).IPv6 }, nonEmpty),
	},
	{
		"container", "dns", "list", "",
		"With translate: the resolvers, each ADDR:PORT, to ask for names, as --dns of tsugiki run. Without this key the agent asks those of its /etc/resolv.conf.",
		texts(func(c *Config) *[]Text { return &last(c).DNS }),
	},
	{
		"container", "pool", "PREFIX", "198.18.0.0/15",
		"With translate: the virtual IPv4 addresses, a prefix of 15 bits, as --pool of tsugiki run.",
		text(func(c *Config) *string { return &last(c).Pool }, nonEmpty),
	},
	{
		"container", "ftp", "PORT[,PORT]... or none", "21",
		"With translate: the ports of FTP's control connections, as --ftp of tsugiki run.",
		text(func(c *Config) *string { return &last(c).FTP }, nonEmpty),
	},
	{
		"container", "sip", "PORT[,PORT]... or none", "none",
		"With translate: the ports of SIP over TCP and UDP, as --sip of tsugiki run.",
		text(func(c *Config) *string { return &last(c).SIP }, nonEmpty),
	},
	{
		"guest", "name", "name", "",
		"Name of a virtual machine. It gets the rules of the first [[container]] whose match covers the name. Required.",
		text(func(c *Config) *string { return &lastGuest(c).Name }, nonEmpty),
	},
	{
		"guest", "vsock", "PATH, hybrid:PATH or CID", "",
		"Where its VMM gives the host its vsock connections, as --vsock of tsugiki guest attach. A path is absolute. Required.",
		text(func(c *Config) *string { return &lastGuest(c).VSock }, nonEmpty),
	},
}

// tables has the setters of the keys, by table and key.
var tables = func() map[string]map[string]setter {
	tables := map[string]map[string]setter{}
	for _, k := range keys {
		if tables[k.Table] == nil {
			tables[k.Table] = map[string]setter{}
		}
		tables[k.Table][k.Name] = k.set
	}
	return tables
}()

// arrays has the arrays of tables: functions that append a table, and that count the tables.
var arrays = map[string]struct {
	add   func(c *Config, line int)
	count func(*Config) int
}{
	"allow": {
		func(c *Config, line int) { c.Allows = append(c.Allows, Allow{Line: line}) },
		func(c *Config) int { return len(c.Allows) },
	},
	"container": {
		func(c *Config, line int) { c.Containers = append(c.Containers, Container{Line: line}) },
		func(c *Config) int { return len(c.Containers) },
	},
	"guest": {
		func(c *Config, line int) { c.Guests = append(c.Guests, Guest{Line: line}) },
		func(c *Config) int { return len(c.Guests) },
	},
}

func lastGuest(c *Config) *Guest { return &c.Guests[len(c.Guests)-1] }

func lastAllow(c *Config) *Allow { return &c.Allows[len(c.Allows)-1] }

func last(c *Config) *Container { return &c.Containers[len(c.Containers)-1] }

// tableNames returns the names of all tables, sorted.
func tableNames() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(tables)), func(name string) bool { return name == "" })
}
