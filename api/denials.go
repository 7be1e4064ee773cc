package api

import "net/http"

// Denials are the calls of a container that have failed by its rules.
//
//	GET /v1/containers/NAME/denials
type Denials struct {
	// Kernel counts calls and packets that the kernel programs refused, since the container's
	// beginning.
	Kernel Denied `json:"kernel"`
	// Last are calls that failed with an errno of the agent's, and while the container is traced
	// also others whose errno is known. The oldest is first. A new agent begins with none.
	Last []Denial `json:"last"`
}

// Denial is a call that has failed.
type Denial struct {
	Time    string `json:"time"` // RFC 3339, with nanoseconds
	PID     int    `json:"pid"`  // the thread that made the call
	Syscall string `json:"syscall"`
	FD      int    `json:"fd"`
	Addr    string `json:"addr"`  // as the program gave it; empty if the call has none
	Errno   string `json:"errno"` // its name, such as EADDRINUSE
}

// Denials returns the last denials of the container, which must be one of the daemon's.
func (c *ContainerClient) Denials() (Denials, error) {
	var d Denials
	return d, c.do(http.MethodGet, "/denials", nil, &d)
}
