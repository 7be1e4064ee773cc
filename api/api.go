// Package api is what others say to the node daemon, and it to them: HTTP with JSON
// on a unix socket. docs/API.md has it for readers of other languages.
//
// It owns the messages and a client; it decides nothing. Who calls has to be root
// and to have CAP_NET_ADMIN.
package api

// Registration announces a container, before its first program is started.
//
//	POST /v1/containers
type Registration struct {
	ID   string `json:"id"`   // as its engine calls it
	Name string `json:"name"` // and by which name
	// Engine is one of config.Engines; empty is other.
	Engine string `json:"engine,omitempty"`
	// Annotations are those that begin with tsugiki.dev/, of who starts the container.
	// The configuration says which are heard.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Unknown are the names of those annotations of which it is not known whether the
	// image brings them.
	Unknown []string `json:"unknown,omitempty"`
	// Image are the names of annotations that the image brings. They are for the
	// agent's log, and never heard.
	Image []string `json:"image,omitempty"`
	// Rules are those of tsugiki run, and the caller's own: then annotations and
	// configuration are not looked at.
	Rules *Rules `json:"rules,omitempty"`
	// UID and GID are the host's ids of its first program.
	UID int `json:"uid"`
	GID int `json:"gid"`
	// LoopbackOnly says that its own network namespace has, and will have, nothing
	// but a loopback.
	LoopbackOnly bool `json:"loopbackOnly"`
	// Dropped are capabilities that its runtime takes from it, if it is grafted. They
	// are for the agent's log.
	Dropped []string `json:"dropped,omitempty"`
	// Programs asks for a cgroup for its programs, which is killed when the
	// container is removed.
	Programs bool `json:"programs"`
}

// Rules are what a container is given, in the words of tsugiki run.
type Rules struct {
	Mode      string   `json:"mode"`
	Endpoints []string `json:"endpoints"`
	Ingress   []string `json:"ingress"`
	Egress    []string `json:"egress"`
}

// Registered is the answer: 201, or 200 and Graft false where no rule says that
// anything of the container is to be grafted.
type Registered struct {
	Graft bool   `json:"graft"`
	Name  string `json:"name"` // of the container: an annotation can give it another
	// Token goes, as seccomp's listenerMetadata, with each listener to the socket
	// Listener.
	Token    string `json:"token"`
	Listener string `json:"listener"`
	Filter   Filter `json:"filter"`
	// Library is the folder of the library for LD_PRELOAD, which is
	// preload/$LIB/libtsugiki.so in there; empty: none.
	Library string `json:"library"`
	Cgroup  string `json:"cgroup,omitempty"` // of the programs, if it was asked for
}

// Filter says what the container's filter has to trap.
type Filter struct {
	Mode      string `json:"mode"`
	Datagrams bool   `json:"datagrams"`
	// AFGraft says that programs for AF_GRAFT are expected. The message has its first name.
	AFGraft bool `json:"api"`
	// Untrapped says that connect(2), sends and listen(2) are not trapped.
	Untrapped bool `json:"untrapped"`
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
	Ports   []string `json:"ports"`   // what it may serve: HOST:PORT->ADDR:PORT
	Egress  []string `json:"egress"`  // where it may connect: PREFIX->ENDPOINT ADDRESS
}

// Removed is the answer to the removal of a container that the daemon has ended: 200; else it is 204.
//
//	DELETE /v1/containers/NAME
type Removed struct {
	Cause string `json:"cause"` // one line
}

// Failure is every other answer.
type Failure struct {
	Error string `json:"error"`
	// Unknown are the containers that there are not, of a request that charges some.
	Unknown []string `json:"unknown,omitempty"`
}

// Stats is what the daemon and its containers have counted.
//
//	GET /v1/stats
type Stats struct {
	Time       string           `json:"time"`       // RFC 3339, with nanoseconds
	Containers []ContainerStats `json:"containers"` // by name
}

// ContainerStats are those of one container. What is not said to be the agent's is
// counted by the kernel or by the container's gates, and goes on when the agent is
// restarted.
type ContainerStats struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	State string `json:"state"` // created, running
	// Gates are its gates; Silent those of them that did not say in time what they
	// have counted: for them stands what they said last.
	Gates  int `json:"gates"`
	Silent int `json:"silent"`
	// Connections are the TCP connections of its host sockets that were established.
	Connections Connections `json:"connections"`
	Denied      Denied      `json:"denied"` // by the kernel programs
	// Gate are the calls that its gates have answered themselves, Agent those that
	// they have put to the agent.
	Gate  Decisions `json:"gate"`
	Agent Decisions `json:"agent"`
	Pool  Pool      `json:"pool"`
	// AskedAgain are calls that were put to another agent again after a restart,
	// Delayed those that had to wait to be put to one, and Unreported those that no
	// trace was told of, for want of time.
	AskedAgain uint64 `json:"askedAgain"`
	Delayed    uint64 `json:"delayed"`
	Unreported uint64 `json:"unreported"`
	// Memory is what its gates and keepers have in memory, in bytes.
	Memory uint64 `json:"memory"`
}

// Connections are counted by who began.
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
	// Leave are packets that were about to leave a host socket to where no rule lets them,
	// Enter datagrams that came for a client that had not sent to their sender.
	Leave uint64 `json:"leave"`
	Enter uint64 `json:"enter"`
}

// Decisions are calls that were answered.
type Decisions struct {
	Calls map[string]uint64 `json:"calls"` // by name
	// Refused are those that got an error for an answer. The agent's begin at 0
	// with the agent.
	Refused uint64 `json:"refused"`
	// Times are how many took less than 2^N ns, but not less than 2^(N-1), for N =
	// 0, 1, ...; the last, how many took longer. The agent's begin at 0 with it.
	Times []uint64 `json:"times"`
}

// Pool are sockets that were made before or when programs asked for one.
type Pool struct {
	Batches uint64 `json:"batches"` // that were handed to programs in advance
	Sockets uint64 `json:"sockets"` // in these
	Single  uint64 `json:"single"`  // made one at a time
	Misses  uint64 `json:"misses"`  // of these, those of which a program had none left
}
