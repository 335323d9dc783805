"""The messages of etcd v3 that we speak, a small subset of its interface, as protobuf classes.

The schema is a table in this file instead of a generated module: generated code refuses a protobuf older than its
generator, and tools have to be told to leave it alone. The classes live in a descriptor pool of their own, so that
another etcd client in the same process (most register ``etcdserverpb``) never clashes with them. What counts on the
wire are the field numbers, which are etcd's.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["Message", "message"]

Message = Any
"""An instance of one of the classes below; the classes are made at run time, so no type checker knows them."""

_PACKAGE = "phalanx.store.etcd"

# One message a line: its fields as number:name:type, a * behind the type for a repeated one. etcd's "oneof" groups are
# left out: on the wire they are plain fields, and etcd takes an absent alternative for its zero, as we mean it.
_SCHEMA = """
ResponseHeader              1:cluster_id:uint64 2:member_id:uint64 3:revision:int64 4:raft_term:uint64
KeyValue                    1:key:bytes 2:create_revision:int64 3:mod_revision:int64 4:version:int64 5:value:bytes \
6:lease:int64
Event                       1:type:int32 2:kv:KeyValue
RangeRequest                1:key:bytes 2:range_end:bytes
RangeResponse               1:header:ResponseHeader 2:kvs:KeyValue*
PutRequest                  1:key:bytes 2:value:bytes 3:lease:int64
PutResponse                 1:header:ResponseHeader
DeleteRangeRequest          1:key:bytes 2:range_end:bytes 3:prev_kv:bool
DeleteRangeResponse         1:header:ResponseHeader 2:deleted:int64 3:prev_kvs:KeyValue*
Compare                     1:result:int32 2:target:int32 3:key:bytes 4:version:int64 5:create_revision:int64 \
6:mod_revision:int64 7:value:bytes
RequestOp                   1:request_range:RangeRequest 2:request_put:PutRequest \
3:request_delete_range:DeleteRangeRequest
ResponseOp                  1:response_range:RangeResponse 2:response_put:PutResponse \
3:response_delete_range:DeleteRangeResponse
TxnRequest                  1:compare:Compare* 2:success:RequestOp* 3:failure:RequestOp*
TxnResponse                 1:header:ResponseHeader 2:succeeded:bool 3:responses:ResponseOp*
CompactionRequest           1:revision:int64 2:physical:bool
CompactionResponse          1:header:ResponseHeader
LeaseGrantRequest           1:TTL:int64 2:ID:int64
LeaseGrantResponse          1:header:ResponseHeader 2:ID:int64 3:TTL:int64
LeaseRevokeRequest          1:ID:int64
LeaseRevokeResponse         1:header:ResponseHeader
LeaseKeepAliveRequest       1:ID:int64
LeaseKeepAliveResponse      1:header:ResponseHeader 2:ID:int64 3:TTL:int64
WatchCreateRequest          1:key:bytes 2:range_end:bytes 3:start_revision:int64 4:progress_notify:bool
WatchRequest                1:create_request:WatchCreateRequest
WatchResponse               1:header:ResponseHeader 2:watch_id:int64 3:created:bool 4:canceled:bool \
5:compact_revision:int64 6:cancel_reason:string 11:events:Event*
AuthenticateRequest         1:name:string 2:password:string
AuthenticateResponse        1:header:ResponseHeader 2:token:string
AuthEnableRequest
AuthEnableResponse          1:header:ResponseHeader
AuthUserAddRequest          1:name:string 2:password:string
AuthUserAddResponse         1:header:ResponseHeader
AuthUserGrantRoleRequest    1:user:string 2:role:string
AuthUserGrantRoleResponse   1:header:ResponseHeader
AuthRoleAddRequest          1:name:string
AuthRoleAddResponse         1:header:ResponseHeader
StatusRequest
StatusResponse              1:header:ResponseHeader 2:version:string 4:leader:uint64
Member                      1:ID:uint64 2:name:string 3:peerURLs:string* 4:clientURLs:string*
MemberListRequest
MemberListResponse          1:header:ResponseHeader 2:members:Member*
"""


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="phalanx/store/etcd.proto", package=_PACKAGE, syntax="proto3"
    )
    for line in filter(None, _SCHEMA.splitlines()):
        name, *fields = line.split()
        described = file.message_type.add(name=name)
        for field in fields:
            number, field_name, kind = field.split(":")
            is_repeated, kind = kind.endswith("*"), kind.removesuffix("*")
            proto = descriptor_pb2.FieldDescriptorProto
            added = described.field.add(name=field_name, number=int(number))
            added.label = proto.LABEL_REPEATED if is_repeated else proto.LABEL_OPTIONAL
            if kind[0].isupper():
                added.type, added.type_name = proto.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                added.type = proto.Type.Value(f"TYPE_{kind.upper()}")
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(_file().SerializeToString())


def message(name: str) -> Any:
    """The class of the message of that name. Raises ``KeyError`` for one that is not in the table."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
