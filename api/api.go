// Package api has the messages between the node daemon and its callers: HTTP with JSON on a unix
// socket. docs/API.md describes them for other languages.
//
// It owns the messages and a client. It decides nothing. A caller must be root, or the daemon's
// user, and have CAP_NET_ADMIN.
package api

// Registration announces a container, before its first program is started.
//
//	POST /v1/containers
type Registration struct {
	ID   string `json:"id"`   // the engine's
	Name string `json:"name"` // the engine's
	// Engine is one of config.Engines; empty stands for other.
	Engine string `json:"engine,omitempty"`
	// Annotations are those of the container's starter that begin with tsugiki.dev/. The
	// configuration says which have an effect.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Unknown are the names of those annotations that may be the starter's or the image's.
	Unknown []string `json:"unknown,omitempty"`
	// Image are the names of the image's annotations. They have no effect, and are for the
	// agent's log.
	Image []string `json:"image,omitempty"`
	// Rules are the caller's own, as tsugiki run has them. Annotations and configuration then
	// have no effect.
	Rules *Rules `json:"rules,omitempty"`
	// UID and GID are those of the first program, in the host's user namespace.
	UID int `json:"uid"`
	GID int `json:"gid"`
	// LoopbackOnly says that the container's own network namespace has, and will have, no
	// interface but a loopback.
	LoopbackOnly bool `json:"loopbackOnly"`
	// Published are the container's ports that the engine publishes at the host's addresses itself
	// (docker run -p), as PORT/PROTOCOL. A rule that would move the server away is refused.
	Published []string `json:"published,omitempty"`
	// Dropped are the capabilities that the runtime takes from a grafted container. They are
	// for the agent's log.
	Dropped []string `json:"dropped,omitempty"`
	// Programs asks for a cgroup for the container's programs. The daemon kills it when the
	// container is removed.
	Programs bool `json:"programs"`
	// Pod is the pod of Kubernetes that the container belongs to; nil: it is in none.
	Pod *Pod `json:"pod,omitempty"`
	// GrantWithin is how long the registration waits for the grant of its pod, in milliseconds: the
	// caller has to answer in time. 0, and more than the daemon's own 8 s, stand for these. With it, a
	// daemon without grants refuses the container.
	GrantWithin int `json:"grantWithin,omitempty"`
}

// Rules are a container's rules, in the grammar of the flags of tsugiki run.
type Rules struct {
	Mode      string   `json:"mode"`
	Endpoints []string `json:"endpoints"`
	Ingress   []string `json:"ingress"`
	Egress    []string `json:"egress"`
	// NameRules are for containers whose IPv4 is translated.
	NameRules []string `json:"nameRules,omitempty"`
	// Translate asks for the translation of IPv4; nil: programs get none.
	Translate *Translate `json:"translate,omitempty"`
}

// Translate configures the translation of IPv4 for programs that know IPv4 only, on an IPv6-only
// network.
type Translate struct {
	// IPv6 is the host's address from which programs reach all of IPv6, if there is no egress rule;
	// empty: the host chooses it.
	IPv6 string `json:"ipv6,omitempty"`
	// DNS are the resolvers that are asked for names, each as ADDR:PORT; none: those of the agent's
	// /etc/resolv.conf.
	DNS []string `json:"dns,omitempty"`
	// Pool is the IPv4 prefix of the virtual addresses, of 15 bits; empty: 198.18.0.0/15.
	Pool string `json:"pool,omitempty"`
	// FTP are the ports of FTP's control connections, PORT[,PORT]... or none; empty: 21.
	FTP string `json:"ftp,omitempty"`
	// SIP are the TCP ports of SIP, PORT[,PORT]... or none; empty: none.
	SIP string `json:"sip,omitempty"`
}

// Registered is the answer to a Registration: 201; or 200 with Graft false if no rule is for the
// container.
type Registered struct {
	Graft bool   `json:"graft"`
	Name  string `json:"name"` // the container's; an annotation can change it
	// Token is sent as seccomp's listenerMetadata with each listener to the unix socket
	// Listener.
	Token    string `json:"token"`
	Listener string `json:"listener"`
	Filter   Filter `json:"filter"`
	// Library is a directory. LD_PRELOAD names preload/$LIB/libtsugiki.so in it. Empty: no
	// library.
	Library string `json:"library"`
	Cgroup  string `json:"cgroup,omitempty"` // of the programs, if Programs was set
}

// Filter says which calls the container's filter must trap.
type Filter struct {
	Mode      string `json:"mode"`
	Datagrams bool   `json:"datagrams"`
	// AFGraft says that the filter traps the calls of AF_GRAFT programs. The JSON key is older
	// than that name.
	AFGraft bool `json:"api"`
	// Untrapped says that connect(2), sends and listen(2) are not trapped.
	Untrapped bool `json:"untrapped"`
	// Accepts says that accept(2) is trapped.
	Accepts bool `json:"accepts,omitempty"`
	// Translated says that the calls are trapped that tell addresses, as IPv4 is translated.
	Translated bool `json:"translated,omitempty"`
}

// Container is one of the daemon's containers.
//
//	GET /v1/containers       [Container...], by name
//	GET /v1/containers/NAME  Container
type Container struct {
	ID      string   `json:"id"`
	Name    string   `json:"name"`
	State   string   `json:"state"` // created, running
	PID     int      `json:"pid"`   // of the first program; 0 before there is one
	Mode    string   `json:"mode"`
	Created string   `json:"created"` // RFC 3339
	Ports   []string `json:"ports"`   // ingress rules: HOST:PORT->ADDR:PORT
	Egress  []string `json:"egress"`  // egress rules: PREFIX->ENDPOINT ADDRESS
	Pod     *Pod     `json:"pod,omitempty"`
}

// Removed is the answer to the removal of a container that the daemon itself had ended: 200. The
// removal of any other container has the answer 204.
//
//	DELETE /v1/containers/NAME
type Removed struct {
	Cause string `json:"cause"` // one line
}

// Failure is every other answer.
type Failure struct {
	Error string `json:"error"`
	// Unknown are those containers of a charge request that do not exist.
	Unknown []string `json:"unknown,omitempty"`
}

// Stats has the counters of the daemon and of its containers.
//
//	GET /v1/stats
type Stats struct {
	Time       string           `json:"time"`       // RFC 3339, with nanoseconds
	Containers []ContainerStats `json:"containers"` // by name
}

// ContainerStats has the counters of one container. The kernel and the container's gates count.
// Their counters continue when the agent is restarted. Agent.Refused and Agent.Times are the
// agent's own, and begin at 0 then.
type ContainerStats struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	State string `json:"state"` // created, running
	// Gates is the number of the container's gates. Silent is the number of those that did not
	// answer in time: their last answer is used.
	Gates  int `json:"gates"`
	Silent int `json:"silent"`
	// Connections are the TCP connections of host sockets that were established.
	Connections Connections `json:"connections"`
	Denied      Denied      `json:"denied"` // by the kernel programs
	// Gate has the calls that gates answered, Agent those that gates passed on to the agent.
	Gate  Decisions `json:"gate"`
	Agent Decisions `json:"agent"`
	// Kernel has the calls that are not trapped, about which the kernel programs decide.
	Kernel KernelDecisions `json:"kernel"`
	Pool   Pool            `json:"pool"`
	// AskedAgain are calls that a gate passed on once more after a restart of the agent. Delayed
	// are calls that a gate could not pass on at once, as too many were pending. Unreported are
	// decisions that are missing in traces, as the agent was too slow.
	AskedAgain uint64 `json:"askedAgain"`
	Delayed    uint64 `json:"delayed"`
	Unreported uint64 `json:"unreported"`
	// Memory is the memory of gates and keepers, in bytes.
	Memory uint64 `json:"memory"`
	// Translation is missing if IPv4 is not translated.
	Translation *TranslationStats `json:"translation,omitempty"`
	// Guest is missing if the container is no virtual machine. Its counters begin at 0 with the daemon.
	Guest *GuestState `json:"guest,omitempty"`
}

// Connections are TCP connections: Out were opened by the container, In by others.
type Connections struct {
	Out uint64 `json:"out"`
	In  uint64 `json:"in"`
}

// Denied are calls that the kernel programs refused.
type Denied struct {
	Connect    uint64 `json:"connect"`
	Bind       uint64 `json:"bind"`
	Send       uint64 `json:"send"`
	SetSockOpt uint64 `json:"setsockopt"`
	// Leave are packets of host sockets to destinations that no rule permits. Enter are datagrams
	// for a client from an address that it had not sent to, and SYNs and datagrams for a server that
	// come from none of its rule's sources.
	Leave uint64 `json:"leave"`
	Enter uint64 `json:"enter"`
}

// Decisions are calls that were answered.
type Decisions struct {
	Calls map[string]uint64 `json:"calls"` // by name
	// Refused are the calls that were answered with an error.
	Refused uint64 `json:"refused"`
	// Times is a histogram. Element N counts the calls that took at least 2^(N-1) ns and less
	// than 2^N ns; the last element counts all longer ones.
	Times []uint64 `json:"times"`
}

// KernelDecisions are calls about which kernel programs have decided.
type KernelDecisions struct {
	Calls map[string]uint64 `json:"calls"` // by name
}

// Pool counts the sockets that gates created for programs.
type Pool struct {
	Batches uint64 `json:"batches"` // messages with sockets in advance
	Sockets uint64 `json:"sockets"` // in these messages
	Single  uint64 `json:"single"`  // sockets for one socket(2) each
	Misses  uint64 `json:"misses"`  // of Single: the program had used up its sockets in advance
}
