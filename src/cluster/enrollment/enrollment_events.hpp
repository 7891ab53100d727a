// What an Enrollment tells its owner, and the tickets for what the owner asked for.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "base/node.hpp"
#include "base/status.hpp"

namespace vmem::cluster {

enum class Ticket : std::uint64_t {};
enum class Slice : std::uint32_t {};  // number of a part of the address space, from 0

struct Enrolled {
  NodeId self{};
};
// From now on this node must not act as a member. Said once for each fence.
struct Fenced {};
struct FenceEnded {};
// Everything that this node held as a member is void: its id, its slices, its rights. It enrolls
// again by itself. Another node may have taken over the slices; whoever still uses their addresses
// takes them over again, by take_over_slice, before it shares anything there.
struct Expelled {
  NodeId former{};
  std::vector<Slice> slices;
  Error why;
};
// This node cannot take part. Nothing follows.
struct Refused {
  Error why;
};
// The orderly end, or an Error if some of it is left to time: TIMEOUT, LOST. Nothing follows.
struct Left {
  Status status;
};

// The registry has this node's record as the last change_record asked for.
struct RecordChanged {
  Ticket ticket{};
};

struct NodeAppeared {
  NodeId node{};
};
struct NodeChanged {  // its record
  NodeId node{};
};
struct NodeGone {  // its membership is over, for certain
  NodeId node{};
};
struct DrainChanged {  // this node, too; or the order is another one
  NodeId node{};
  bool draining = false;
};

// Errors of both: TIMEOUT, if the deadline came first. A serial that was taken all the same is not
// given to anybody. Slices that were taken all the same go to the next that ask for some, or are
// released; one that was taken over all the same waits until that is asked for again.
struct SerialTaken {
  Ticket ticket{};
  Result<std::uint64_t> serial;
};
// In order; those of take_slices are adjacent. Errors, too: ADDRESS_SPACE if not as many adjacent
// ones are free; IN_USE if one to be taken over is another's; INVALID_VALUE for a number of slices
// that is 0 or too large.
struct SlicesTaken {
  Ticket ticket{};
  Result<std::vector<Slice>> slices;
};

using EnrollmentEvent = std::variant<Enrolled, Fenced, FenceEnded, Expelled, Refused, Left, RecordChanged, NodeAppeared,
                                     NodeChanged, NodeGone, DrainChanged, SerialTaken, SlicesTaken>;

}  // namespace vmem::cluster
