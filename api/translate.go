package api

import "net/http"

// Translation is how IPv4 is translated for a container now. A container without translation has
// the answer 404.
//
//	GET /v1/containers/NAME/translation
type Translation struct {
	Container string `json:"container"`
	// Pool is the prefix of the virtual addresses that names and peers are given. Hosts that ask UDP
	// servers of the container may have one of Peers.
	Pool  string `json:"pool"`
	Peers string `json:"peers"`
	// NAT64 is the prefix of the network's NAT64; empty: none is known.
	NAT64     string   `json:"nat64"`
	Resolvers []string `json:"resolvers"` // ADDR:PORT, in the order in which they are asked
	// UDP says whether UDP is translated, too.
	UDP bool `json:"udp"`
	// Counts are those of ContainerStats.
	Counts   TranslationStats `json:"counts"`
	Mappings []Mapping        `json:"mappings"` // by virtual address
}

// Mapping is an IPv6 host under its virtual address.
type Mapping struct {
	V4 string `json:"v4"`
	V6 string `json:"v6"`
	// Sockets are the container's sockets that are connected to the host.
	Sockets int `json:"sockets"`
	// Until is the time to which an answer or a peer has the mapping in use, RFC 3339; it may have
	// passed.
	Until string `json:"until"`
	// InUse says that no other host can get the address now.
	InUse bool `json:"inUse"`
}

// TranslationStats has the counters of one container's translation. Addresses is the present state
// of the pool. The counters are the agent's, and begin at 0 when it is restarted.
type TranslationStats struct {
	Addresses Addresses `json:"addresses"`
	// Reclaimed are the virtual addresses that another host got. Exhausted are the hosts that got none,
	// because all addresses were in use. Refused are the addresses that get none: special ones, and the
	// host's own.
	Reclaimed uint64 `json:"reclaimed"`
	Exhausted uint64 `json:"exhausted"`
	Refused   uint64 `json:"refused"`
	Names     Names  `json:"names"`
	Relays    Relays `json:"relays"`
}

// Addresses are the virtual addresses of a pool. InUse are those of mappings that an answer or a peer
// has in use. Idle are those of all other mappings.
type Addresses struct {
	InUse int `json:"inUse"`
	Idle  int `json:"idle"`
	Free  int `json:"free"`
}

// Names counts the questions of programs for names.
type Names struct {
	Answered uint64 `json:"answered"`
	Failed   uint64 `json:"failed"` // SERVFAIL
	// Unanswered are questions to which no resolver had an answer. Forged are messages to the agent that
	// were no answer to its question.
	Unanswered uint64 `json:"unanswered"`
	Forged     uint64 `json:"forged"`
}

// Relays counts what goes by the relays of FTP and SIP.
type Relays struct {
	FTP RelayedProtocol `json:"ftp"`
	SIP RelayedProtocol `json:"sip"`
	// Datagrams are those of SIP's ports. Lost are those for which the agent was too slow.
	Datagrams uint64 `json:"datagrams"`
	Lost      uint64 `json:"lost"`
}

// RelayedProtocol counts the connections of a protocol that were relayed, and those that were refused as
// there was no room. Rewritten are its messages of which something was changed. Refused are those that
// did not go on.
type RelayedProtocol struct {
	Connections uint64 `json:"connections"`
	Full        uint64 `json:"full"`
	Rewritten   uint64 `json:"rewritten"`
	Refused     uint64 `json:"refused"`
}

// Flushed is the answer to a request to forget the mappings that are not in use.
//
//	DELETE /v1/containers/NAME/translation/mappings
type Flushed struct {
	Forgotten int `json:"forgotten"`
	Kept      int `json:"kept"` // in use
}

// Translation returns how IPv4 is translated for the container. The error is ErrNotFound if it is
// not.
func (c *ContainerClient) Translation() (Translation, error) {
	var t Translation
	return t, c.do(http.MethodGet, "/translation", nil, &t)
}

// Flush has the container forget the mappings that are not in use.
func (c *ContainerClient) Flush() (Flushed, error) {
	var f Flushed
	return f, c.do(http.MethodDelete, "/translation/mappings", nil, &f)
}
