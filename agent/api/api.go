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
	ID   string `json:"id"` // as its engine calls it
	Name string `json:"name"`
	// Annotations are those that begin with tsugiki.dev/.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Rules are those of tsugiki run: then annotations and configuration are not
	// looked at.
	Rules *Rules `json:"rules,omitempty"`
	// UID and GID are the host's ids of its first program.
	UID int `json:"uid"`
	GID int `json:"gid"`
	// LoopbackOnly says that its own network namespace has, and will have, nothing
	// but a loopback.
	LoopbackOnly bool `json:"loopbackOnly"`
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
	Name  string `json:"name"`
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
	API       bool   `json:"api"`
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

// Failure is every other answer.
type Failure struct {
	Error string `json:"error"`
}
