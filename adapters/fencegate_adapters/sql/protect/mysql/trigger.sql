CREATE TRIGGER <<trigger>> <<event>> ON <<table>> FOR EACH ROW
BEGIN
<<calls>>
END
